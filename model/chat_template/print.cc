#include "model/chat_template/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

std::string QuotedRepr(std::string_view text) {
  constexpr std::u32string_view kFrom = U"\n\r\t\\";
  constexpr std::string_view kTo = "nrt\\";
  const bool has_single = text.find('\'') != text.npos, has_double = text.find('"') != text.npos;
  const char quote = has_single && !has_double ? '"' : '\'';
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

// Prints a value as repr() or as json.dumps(), charging the heap for each part first.
class Printer {
 public:
  // Without a style as repr().
  Printer(Heap& heap, const JsonStyle* json)
      : heap_(heap), json_(json), style_(json != nullptr ? *json : JsonStyle()) {}

  std::string Print(Value value) {
    Add(value);
    return std::move(text_);
  }

 private:
  void Add(std::string_view part) {
    heap_.Spend(part.size());
    text_ += part;
  }

  void NewLine() {
    if (!style_.indent.has_value()) return;
    Add("\n");
    for (int i = 0; i < depth_; ++i) Add(*style_.indent);
  }

  // Prints brackets and n items, which `item(i)` prints.
  template <class Item>
  void AddNested(std::string_view open, std::string_view close, size_t n, Item item) {
    Add(open);
    ++depth_;
    for (size_t i = 0; i < n; ++i) {
      if (i > 0) Add(style_.item_separator);
      NewLine();
      item(i);
    }
    --depth_;
    if (n > 0) NewLine();
    Add(close);
  }
  void AddItems(std::string_view open, std::string_view close, Value value) {
    AddNested(open, close, value.items().size(), [&](size_t i) { Add(value.items()[i]); });
  }

  void Add(Value value) {
    const Level level(heap_);
    switch (value.kind()) {
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        return Add(Plain(value));
      case Kind::kString:
        return AddString(value);
      case Kind::kList:
        return AddItems("[", "]", value);
      case Kind::kTuple:
        if (json_ != nullptr) return AddItems("[", "]", value);
        return AddItems("(", value.items().size() == 1 ? ",)" : ")", value);
      case Kind::kDict:
        return AddEntries(value.entries());
      default:
        AddOther(value);
    }
  }

  // A number, truth value or None.
  std::string Plain(Value value) const {
    if (value.is(Kind::kNone)) return json_ != nullptr ? "null" : "None";
    if (value.is(Kind::kBool)) {
      return value.integer() != 0 ? (json_ != nullptr ? "true" : "True")
                                  : (json_ != nullptr ? "false" : "False");
    }
    if (value.is_integer()) return absl::StrCat(value.integer());
    if (json_ == nullptr || std::isfinite(value.number())) return FloatText(value.number());
    return std::isnan(value.number()) ? "NaN" : value.number() > 0 ? "Infinity" : "-Infinity";
  }

  void AddString(Value value) {
    if (json_ != nullptr) return AddJsonString(value.text());
    heap_.Spend(value.text().size());
    const std::string repr = QuotedRepr(value.text());
    Add(value.is_safe() ? absl::StrCat("Markup(", repr, ")") : repr);
  }

  // Values that JSON does not have.
  void AddOther(Value value) {
    if (json_ != nullptr) {
      heap_.TypeError("Object of type ", TypeName(value), " is not JSON serializable");
    }
    if (value.is(Kind::kRange)) return Add(value.As<List>().shown);
    if (value.is(Kind::kView)) return AddItems(value.As<List>().shown + "([", "])", value);
    if (value.is(Kind::kNamespace)) {
      Add("<Namespace ");
      AddEntries(value.entries());
      return Add(">");
    }
    if (value.is(Kind::kCallable) && value.As<Callable>().macro != nullptr) {
      return Add(absl::StrCat("<Macro ", QuotedRepr(value.As<Callable>().name), ">"));
    }
    Add(value.is_undefined() || !value.given() ? "Undefined"
                                               : absl::StrCat("<", TypeName(value), ">"));
  }

  void AddEntries(std::vector<std::pair<Value, Value>> entries) {
    if (json_ != nullptr) {
      for (auto& [key, value] : entries) key = KeyName(key);
    }
    if (style_.sort_keys) {
      std::ranges::stable_sort(entries, {}, [](const auto& entry) { return entry.first.text(); });
    }
    AddNested("{", "}", entries.size(), [&](size_t i) {
      Add(entries[i].first);
      Add(style_.key_separator);
      Add(entries[i].second);
    });
  }

  Value KeyName(Value key) {
    heap_.Step();
    if (key.is_string()) return key;
    if (key.is(Kind::kNone) || key.is_number()) return heap_.Text(Plain(key));
    heap_.TypeError("keys must be str, int, float, bool or None, not ", TypeName(key));
  }

  void AddJsonString(std::string_view text) {
    constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
    heap_.Spend(text.size() + 2);
    text_ += '"';
    for (size_t at = 0; at < text.size();) {
      const char32_t c = model::NextChar(text, at);
      const size_t escape = c < 0x80 ? kFrom.find(static_cast<char>(c)) : kFrom.npos;
      if (escape != kFrom.npos) {
        Add({"\\"});
        text_ += kTo[escape];
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7e && c < 0x10000)) {
        Add(absl::StrFormat("\\u%04x", static_cast<uint32_t>(c)));
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
  const JsonStyle* const json_;
  const JsonStyle style_;
  int depth_ = 0;
  std::string text_;
};

}  // namespace

std::string ToText(Heap& heap, Value value) {
  if (value.is_undefined() || !value.given()) return "";
  if (!value.is_string()) return ToRepr(heap, value);
  heap.Spend(value.text().size());
  return std::string(value.text());
}

std::string ToRepr(Heap& heap, Value value) { return Printer(heap, nullptr).Print(value); }

std::string ToJson(Heap& heap, Value value, const JsonStyle& style) {
  return Printer(heap, &style).Print(value);
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto shown = [&](std::chars_format format) {
    return std::string(buffer, std::to_chars(buffer, std::end(buffer), value, format).ptr);
  };
  const std::string scientific = shown(std::chars_format::scientific);
  const int exponent = std::atoi(scientific.c_str() + scientific.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  const std::string fixed = shown(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
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
