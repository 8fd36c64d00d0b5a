// The methods of str. On safe text they escape their arguments and return safe text, as Markup's
// do.
#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

std::string_view RequireText(Heap& heap, Value value) {
  if (value.is_string()) return value.text();
  if (value.is_undefined()) heap.Undefined(value);
  heap.TypeError(absl::StrCat("must be str, not ", TypeName(value)));
}

// A limit, given as -1 if there is none.
size_t LimitOr(Heap& heap, const Args& args, size_t i) {
  const int64_t limit = args.IntegerOr(heap, i, -1);
  return limit < 0 ? SIZE_MAX : static_cast<size_t>(limit);
}

Value Made(Context& e, const Args& args, std::string text) {
  return e.heap.Text(std::move(text), args[0].string().safe);
}

Value Texts(Context& e, Kind kind, const Args& args, const std::vector<std::string_view>& parts) {
  e.heap.SpendEach(parts.size(), sizeof(Value) + sizeof(std::string_view));
  std::vector<Value> items;
  for (const std::string_view part : parts) items.push_back(Made(e, args, std::string(part)));
  return e.heap.Make(kind, std::move(items));
}

template <bool kLeft, bool kRight>
Value Strip(Context& e, const Args& args) {
  const std::string_view text = args[0].text();
  if (!args[1].given() || args[1].is_none()) {
    return Made(e, args, std::string(StripSpace(text, kLeft, kRight)));
  }
  const std::string_view chars = RequireText(e.heap, args[1]);
  e.heap.SpendEach(text.size(), 1 + chars.size() / 64);
  return Made(e, args, std::string(StripChars(text, chars, kLeft, kRight)));
}

template <bool kFromRight>
Value SplitMethod(Context& e, const Args& args) {
  const std::string_view text = args[0].text();
  const size_t limit = LimitOr(e.heap, args, 2);
  e.heap.Spend(text.size());
  if (!args[1].given() || args[1].is_none()) {
    return Texts(e, Kind::kList, args, SplitSpace(text, limit, kFromRight));
  }
  const std::string_view separator = RequireText(e.heap, args[1]);
  if (separator.empty()) e.heap.Fail(ErrorKind::kType, "ValueError: empty separator");
  return Texts(e, Kind::kList, args, Split(text, separator, limit, kFromRight));
}

template <bool kFromRight>
Value Partition(Context& e, const Args& args) {
  const std::string_view text = args[0].text(), separator = RequireText(e.heap, args[1]);
  if (separator.empty()) e.heap.Fail(ErrorKind::kType, "ValueError: empty separator");
  e.heap.Spend(text.size());
  const std::vector<std::string_view> parts = Split(text, separator, 1, kFromRight);
  if (parts.size() == 2) return Texts(e, Kind::kTuple, args, {parts[0], separator, parts[1]});
  if (kFromRight) return Texts(e, Kind::kTuple, args, {"", "", text});
  return Texts(e, Kind::kTuple, args, {text, "", ""});
}

Value SplitLinesMethod(Context& e, const Args& args) {
  e.heap.Spend(args[0].text().size());
  return Texts(e, Kind::kList, args, SplitLines(args[0].text(), args.TruthOr(1, false)));
}

Value ReplaceMethod(Context& e, const Args& args) {
  return Made(e, args,
              Replaced(e.heap, args[0].text(), RequireText(e.heap, args[1]),
                       RequireText(e.heap, args[2]), LimitOr(e.heap, args, 3)));
}

template <bool kAtEnd>
Value HasAffix(Context& e, const Args& args) {
  const std::string_view text = args[0].text();
  const auto matches = [&](Value affix) {
    const std::string_view part = RequireText(e.heap, affix);
    e.heap.Scan(part.size());
    return kAtEnd ? text.ends_with(part) : text.starts_with(part);
  };
  if (args[1].kind() != Kind::kTuple) return Value::Bool(matches(args[1]));
  return Value::Bool(std::ranges::any_of(args[1].list().items, matches));
}

template <std::string (*kChange)(std::string_view)>
Value Changed(Context& e, const Args& args) {
  e.heap.Spend(3 * args[0].text().size());
  return Made(e, args, kChange(args[0].text()));
}

template <bool (*kIs)(std::string_view)>
Value Is(Context& e, const Args& args) {
  e.heap.Scan(8 * args[0].text().size());
  return Value::Bool(kIs(args[0].text()));
}

// The part of the text from args[2] to args[3], and the number of characters before it.
std::pair<std::string_view, int64_t> Range(Heap& heap, const Args& args) {
  std::string_view text = args[0].text();
  heap.Scan(text.size());
  if (!args[2].given() && !args[3].given()) return {text, 0};
  const int64_t length = model::CountChars(text);
  const auto place = [&](int64_t at) {
    return std::clamp(at < 0 ? at + length : at, int64_t{0}, length);
  };
  const int64_t begin = place(args.IntegerOr(heap, 2, 0));
  const int64_t end = std::max(begin, place(args.IntegerOr(heap, 3, length)));
  text = text.substr(PrefixBytes(text, begin));
  return {text.substr(0, PrefixBytes(text, end - begin)), begin};
}

int64_t Found(Context& e, const Args& args) {
  const auto [text, before] = Range(e.heap, args);
  const size_t at = FindBytes(text, RequireText(e.heap, args[1]));
  return at == std::string_view::npos
             ? -1
             : before + static_cast<int64_t>(model::CountChars(text.substr(0, at)));
}

Value Find(Context& e, const Args& args) { return Value::Int(Found(e, args)); }

Value Index(Context& e, const Args& args) {
  const int64_t at = Found(e, args);
  if (at < 0) e.heap.Fail(ErrorKind::kType, "ValueError: substring not found");
  return Value::Int(at);
}

Value CountMethod(Context& e, const Args& args) {
  const std::string_view text = Range(e.heap, args).first;
  return Value::Int(Count(text, RequireText(e.heap, args[1])));
}

Value JoinMethod(Context& e, const Args& args) {
  std::vector<Value> parts = Items(e.heap, args[1]);
  for (Value& part : parts) {
    RequireText(e.heap, part);
    if (args[0].string().safe) part = Escape(e.heap, part);
  }
  return Made(e, args, Joined(e.heap, parts, args[0].text()));
}

Value FormatMethod(Context& e, const Args& args) { return FormatBraces(e.heap, args[0], args); }

template <bool kAtEnd>
Value RemoveAffix(Context& e, const Args& args) {
  std::string_view text = args[0].text();
  const std::string_view part = RequireText(e.heap, args[1]);
  if (kAtEnd ? text.ends_with(part) : text.starts_with(part)) {
    text = text.substr(kAtEnd ? 0 : part.size(), text.size() - part.size());
  }
  return Made(e, args, std::string(text));
}

constexpr Builtin kMethods[] = {
    {"strip", "self chars?", Strip<true, true>},
    {"lstrip", "self chars?", Strip<true, false>},
    {"rstrip", "self chars?", Strip<false, true>},
    {"split", "self sep? maxsplit?", SplitMethod<false>},
    {"rsplit", "self sep? maxsplit?", SplitMethod<true>},
    {"splitlines", "self keepends?", SplitLinesMethod},
    {"partition", "self sep", Partition<false>},
    {"rpartition", "self sep", Partition<true>},
    {"replace", "self old new count?", ReplaceMethod},
    {"startswith", "self prefix", HasAffix<false>},
    {"endswith", "self suffix", HasAffix<true>},
    {"removeprefix", "self prefix", RemoveAffix<false>},
    {"removesuffix", "self suffix", RemoveAffix<true>},
    {"upper", "self", Changed<Upper>},
    {"lower", "self", Changed<Lower>},
    {"title", "self", Changed<Title>},
    {"capitalize", "self", Changed<Capitalize>},
    {"find", "self sub start? end?", Find},
    {"index", "self sub start? end?", Index},
    {"count", "self sub start? end?", CountMethod},
    {"join", "self iterable", JoinMethod},
    {"format", "self * **", FormatMethod},
    {"isdigit", "self", Is<IsDigits>},
    {"isalpha", "self", Is<IsAlphas>},
    {"isspace", "self", Is<IsSpaces>},
    {"islower", "self", Is<IsLowerCase>},
    {"isupper", "self", Is<IsUpperCase>},
};

}  // namespace

const Builtin* FindStrMethod(std::string_view name) { return FindIn(kMethods, name); }

}  // namespace ovq::jinja
