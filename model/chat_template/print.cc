#include "model/chat_template/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

// Appends `part` to the text, charging the heap first.
void Append(Heap& heap, std::string_view part, std::string& text) {
  heap.Spend(part.size());
  text += part;
}

std::string QuotedRepr(std::string_view text) {
  constexpr std::u32string_view kFrom = U"\n\r\t\\";
  constexpr std::string_view kTo = "nrt\\";
  const char quote =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"'
                                                                                            : '\'';
  std::string repr(1, quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t c = model::NextChar(text, at);
    if (const size_t i = kFrom.find(c); i != kFrom.npos) {
      repr += {'\\', kTo[i]};
    } else if (c == static_cast<unsigned char>(quote)) {
      repr += {'\\', quote};
    } else if (c == ' ' || !(model::IsOther(c) || model::IsWhitespace(c))) {
      model::AppendChar(c, repr);
    } else {
      const auto [letter, digits] = c < 0x100     ? std::pair('x', 2)
                                    : c < 0x10000 ? std::pair('u', 4)
                                                  : std::pair('U', 8);
      absl::StrAppendFormat(&repr, "\\%c%0*x", letter, digits, static_cast<uint32_t>(c));
    }
  }
  return repr += quote;
}

void AppendRepr(Heap& heap, Value value, std::string& text);

void AppendItems(Heap& heap, const std::vector<Value>& items, std::string& text) {
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) Append(heap, ", ", text);
    AppendRepr(heap, items[i], text);
  }
}

void AppendEntries(Heap& heap, const Dict& dict, std::string& text) {
  Append(heap, "{", text);
  bool is_first = true;
  for (const auto& [key, value] : dict.entries()) {
    if (!std::exchange(is_first, false)) Append(heap, ", ", text);
    AppendRepr(heap, key, text);
    Append(heap, ": ", text);
    AppendRepr(heap, value, text);
  }
  Append(heap, "}", text);
}

void AppendRepr(Heap& heap, Value value, std::string& text) {
  const Level level(heap);
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return Append(heap, "Undefined", text);
    case Kind::kNone:
      return Append(heap, "None", text);
    case Kind::kBool:
      return Append(heap, value.integer() != 0 ? "True" : "False", text);
    case Kind::kInt:
      return Append(heap, absl::StrCat(value.integer()), text);
    case Kind::kFloat:
      return Append(heap, FloatText(value.number()), text);
    case Kind::kString:
      heap.Spend(value.text().size());
      return Append(heap,
                    value.string().safe ? absl::StrCat("Markup(", QuotedRepr(value.text()), ")")
                                        : QuotedRepr(value.text()),
                    text);
    case Kind::kList:
      Append(heap, "[", text);
      AppendItems(heap, value.list().items, text);
      return Append(heap, "]", text);
    case Kind::kTuple:
      Append(heap, "(", text);
      AppendItems(heap, value.list().items, text);
      return Append(heap, value.list().items.size() == 1 ? ",)" : ")", text);
    case Kind::kRange:
      return Append(heap, value.list().shown, text);
    case Kind::kView:
      Append(heap, value.list().shown + "([", text);
      AppendItems(heap, value.list().items, text);
      return Append(heap, "])", text);
    case Kind::kDict:
      return AppendEntries(heap, value.dict(), text);
    case Kind::kNamespace:
      Append(heap, "<Namespace ", text);
      AppendEntries(heap, value.dict(), text);
      return Append(heap, ">", text);
    case Kind::kCallable:
      if (value.callable().macro != nullptr) {
        return Append(heap, absl::StrCat("<Macro ", QuotedRepr(value.callable().name), ">"), text);
      }
      [[fallthrough]];
    case Kind::kGenerator:
    case Kind::kLoop:
      return Append(heap, absl::StrCat("<", TypeName(value), ">"), text);
  }
}

class JsonWriter {
 public:
  JsonWriter(Heap& heap, const JsonStyle& style) : heap_(heap), style_(style) {}

  std::string Write(Value value) {
    AppendValue(value);
    return std::move(text_);
  }

 private:
  void Add(std::string_view part) { Append(heap_, part, text_); }

  void NewLine() {
    if (!style_.indent.has_value()) return;
    Add("\n");
    for (int i = 0; i < depth_; ++i) Add(*style_.indent);
  }

  template <class Item>
  void AppendNested(char open, char close, size_t n, Item item) {
    text_ += open;
    ++depth_;
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) Add(style_.item_separator);
      NewLine();
      item(i);
    }
    --depth_;
    if (n > 0) NewLine();
    text_ += close;
  }

  void AppendValue(Value value) {
    const Level level(heap_);
    switch (value.kind()) {
      case Kind::kNone:
        return Add("null");
      case Kind::kBool:
        return Add(value.integer() != 0 ? "true" : "false");
      case Kind::kInt:
      case Kind::kFloat:
        return Add(Number(value));
      case Kind::kString:
        return AppendString(value.text());
      case Kind::kList:
      case Kind::kTuple: {
        const std::vector<Value>& items = value.list().items;
        return AppendNested('[', ']', items.size(), [&](size_t i) { AppendValue(items[i]); });
      }
      case Kind::kDict:
        return AppendDict(value.dict().entries());
      default:
        heap_.TypeError(
            absl::StrCat("Object of type ", TypeName(value), " is not JSON serializable"));
    }
  }

  void AppendDict(const std::vector<std::pair<Value, Value>>& entries) {
    std::vector<std::pair<std::string, Value>> members;
    for (const auto& [key, value] : entries) members.emplace_back(KeyName(key), value);
    if (style_.sort_keys) {
      std::ranges::stable_sort(members, {}, &std::pair<std::string, Value>::first);
    }
    AppendNested('{', '}', members.size(), [&](size_t i) {
      AppendString(members[i].first);
      Add(style_.key_separator);
      AppendValue(members[i].second);
    });
  }

  std::string KeyName(Value key) {
    heap_.Step();
    if (key.is_string()) {
      heap_.Spend(key.text().size());
      return std::string(key.text());
    }
    if (key.is_none()) return "null";
    if (key.kind() == Kind::kBool) return key.integer() != 0 ? "true" : "false";
    if (key.is_number()) return Number(key);
    heap_.TypeError(
        absl::StrCat("keys must be str, int, float, bool or None, not ", TypeName(key)));
  }

  static std::string Number(Value value) {
    if (value.is_integer()) return absl::StrCat(value.integer());
    if (std::isnan(value.number())) return "NaN";
    if (std::isinf(value.number())) return value.number() > 0 ? "Infinity" : "-Infinity";
    return FloatText(value.number());
  }

  void AppendString(std::string_view text) {
    constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    heap_.Spend(text.size() + 2);
    text_ += '"';
    for (size_t at = 0; at < text.size();) {
      const char32_t c = model::NextChar(text, at);
      const size_t escape = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
      if (escape != std::string_view::npos) {
        Add({"\\"});
        text_ += kTo[escape];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7f && c < 0x10000)) {
        Add(c == 0x7f ? "\x7f" : absl::StrFormat("\\u%04x", static_cast<uint32_t>(c)));
      } else if (style_.ensure_ascii && c >= 0x10000) {
        Add(absl::StrFormat("\\u%04x\\u%04x", 0xd7c0 + (static_cast<uint32_t>(c) >> 10),
                            0xdc00 + (static_cast<uint32_t>(c) & 0x3ff)));
      } else {
        model::AppendChar(c, text_);
      }
    }
    text_ += '"';
  }

  Heap& heap_;
  const JsonStyle& style_;
  int depth_ = 0;
  std::string text_;
};

}  // namespace

std::string ToText(Heap& heap, Value value) {
  if (value.is_undefined() || !value.given()) return "";
  if (value.is_string()) {
    heap.Spend(value.text().size());
    return std::string(value.text());
  }
  return ToRepr(heap, value);
}

std::string ToRepr(Heap& heap, Value value) {
  std::string text;
  AppendRepr(heap, value, text);
  return text;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  char* end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return text;
  end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  text.assign(buffer, end);
  return text.find('.') == std::string::npos ? text.append(".0") : text;
}

std::string ToJson(Heap& heap, Value value, const JsonStyle& style) {
  return JsonWriter(heap, style).Write(value);
}

std::string Joined(Heap& heap, const std::vector<Value>& parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    heap.Spend(separator.size());
    if (i > 0) text += separator;
    text += ToText(heap, parts[i]);
  }
  return text;
}

std::string Replaced(Heap& heap, std::string_view text, std::string_view what, std::string_view by,
                     size_t max_count) {
  heap.Spend(text.size());
  heap.SpendEach(std::min(Count(text, what), max_count), by.size());
  return Replace(text, what, by, max_count);
}

}  // namespace ovq::jinja
