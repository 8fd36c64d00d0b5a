// Filters of values and texts.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/builtin.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

// Jinja's soft_str: the value as text, safe if it was safe.
Value SoftText(Heap& heap, Value value) {
  return value.is_string() ? value : heap.Text(ToText(heap, value));
}

Value ToJsonFilter(Context& e, const Args& args) {
  JsonStyle style;
  style.ensure_ascii = args.TruthOr(1, false);
  style.sort_keys = args.TruthOr(4, false);
  if (args[2].is_string()) {
    style.indent = args[2].text();
  } else if (args[2].given() && !args[2].is_none()) {
    const int64_t n = std::max<int64_t>(args.IntegerOr(e.heap, 2, 0), 0);
    e.heap.SpendEach(n, 1);
    style.indent = std::string(static_cast<size_t>(n), ' ');
  }
  if (style.indent.has_value()) style.item_separator = ",";
  if (args[3].given() && !args[3].is_none()) {
    const std::vector<Value> separators = Items(e.heap, args[3]);
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      e.heap.TypeError("separators must be two strings");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
  }
  return e.heap.Text(ToJson(e.heap, args[0], style));
}

Value LengthFilter(Context& e, const Args& args) { return Value::Int(Length(e.heap, args[0])); }

// Calls a method of str on the value as text.
template <const char* kName>
Value Method(Context& e, const Args& args) {
  Args of_text = args;
  of_text.at[0] = SoftText(e.heap, args[0]);
  const Builtin& method = *FindStrMethod(kName);
  return method.call(e, Bind(e.heap, method, std::move(of_text)));
}
constexpr char kStrip[] = "strip", kUpper[] = "upper", kLower[] = "lower",
               kCapitalize[] = "capitalize";

// Unlike in str.title, a word begins only after blanks, - ( { [ or <.
Value TitleFilter(Context& e, const Args& args) {
  const Value value = SoftText(e.heap, args[0]);
  e.heap.Spend(3 * value.text().size());
  std::string title;
  bool begins = true;
  for (size_t at = 0; at < value.text().size();) {
    const char32_t c = model::NextChar(value.text(), at);
    if (begins) {
      model::AppendUpper(c, title);
    } else {
      model::AppendLower(c, title);
    }
    begins = IsSpace(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  }
  return e.heap.Text(std::move(title), value.string().safe);
}

Value ReplaceFilter(Context& e, const Args& args) {
  const int64_t count = args[3].is_none() ? -1 : args.IntegerOr(e.heap, 3, -1);
  return e.heap.Text(Replaced(e.heap, ToText(e.heap, args[0]), ToText(e.heap, args[1]),
                              ToText(e.heap, args[2]),
                              count < 0 ? SIZE_MAX : static_cast<size_t>(count)));
}

Value Default(Context& e, const Args& args) {
  const bool is_missing = args[0].is_undefined() || (args.TruthOr(2, false) && !Truth(args[0]));
  if (!is_missing) return args[0];
  return args[1].given() ? args[1] : e.heap.Text("");
}

Value StringFilter(Context& e, const Args& args) { return SoftText(e.heap, args[0]); }

// Parses a text like Python's int() and float(): blanks around it, single underscores between
// digits.
std::optional<double> ReadFloat(std::string_view text) {
  std::string digits(StripSpace(text, true, true));
  std::erase(digits, '_');
  double value = 0;
  const bool is_hex = digits.find_first_of("xX") != std::string::npos;
  return !is_hex && absl::SimpleAtod(digits, &value) ? std::optional<double>(value) : std::nullopt;
}

std::optional<int64_t> ReadInt(std::string_view text, int base) {
  std::string digits(StripSpace(text, true, true));
  std::erase(digits, '_');
  if (digits.starts_with('+')) digits.erase(0, 1);
  const std::string prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "";
  if (!prefix.empty() && Lower(digits).starts_with(prefix)) digits.erase(0, 2);
  int64_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

Value IntFilter(Context& e, const Args& args) {
  const Value value = args[0], otherwise = args[1].given() ? args[1] : Value::Int(0);
  if (value.is_undefined()) e.heap.Undefined(value);
  if (value.is_integer()) return Value::Int(value.integer());
  std::optional<double> number;
  if (value.is_string()) {
    const int64_t base = args.IntegerOr(e.heap, 2, 10);
    if (base < 2 || base > 36) e.heap.Fail(ErrorKind::kType, "ValueError: int() base");
    e.heap.Spend(value.text().size());
    const std::optional<int64_t> whole = ReadInt(value.text(), static_cast<int>(base));
    if (whole.has_value()) return Value::Int(*whole);
    number = ReadFloat(value.text());
  } else if (value.is_number()) {
    number = value.number();
  }
  if (!number.has_value() || std::isnan(*number) || std::isinf(*number)) return otherwise;
  if (std::abs(*number) >= 0x1p63) {
    e.heap.Fail(ErrorKind::kLimit, "an integer of more than 64 bits");
  }
  return Value::Int(static_cast<int64_t>(*number));
}

Value FloatFilter(Context& e, const Args& args) {
  const Value value = args[0], otherwise = args[1].given() ? args[1] : Value::Float(0);
  if (value.is_undefined()) e.heap.Undefined(value);
  if (value.is_number()) return Value::Float(value.number());
  if (!value.is_string()) return otherwise;
  e.heap.Spend(value.text().size());
  const std::optional<double> number = ReadFloat(value.text());
  return number.has_value() ? Value::Float(*number) : otherwise;
}

Value Round(Context& e, const Args& args) {
  const Value value = args[0];
  if (value.is_undefined()) e.heap.Undefined(value);
  const int64_t precision = args.IntegerOr(e.heap, 1, 0);
  const std::string method = args[2].given() ? ToText(e.heap, args[2]) : "common";
  if (!value.is_number()) e.heap.TypeError("only numbers can be rounded");
  if (method != "common" && method != "ceil" && method != "floor") {
    e.heap.Fail(ErrorKind::kType, "method must be common, ceil or floor");
  }
  if (std::abs(precision) > 300) e.heap.TypeError("round() to that many digits");
  if (method != "common") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    const double scaled = value.number() * scale;
    return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
  }
  if (value.is_integer() && precision >= 0) return Value::Int(value.integer());
  if (std::isnan(value.number()) || std::isinf(value.number())) return value;
  if (precision < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double rounded = std::nearbyint(value.number() / scale) * scale;
    return value.is_integer() ? Value::Int(static_cast<int64_t>(rounded)) : Value::Float(rounded);
  }
  char digits[700];  // correctly rounded, halves to even, as in Python
  std::snprintf(digits, sizeof(digits), "%.*f", static_cast<int>(precision), value.number());
  return Value::Float(std::strtod(digits, nullptr));
}

Value Abs(Context& e, const Args& args) {
  if (args[0].is_undefined()) e.heap.Undefined(args[0]);
  if (!args[0].is_number()) e.heap.TypeError("bad operand type for abs()");
  if (args[0].kind() == Kind::kFloat) return Value::Float(std::abs(args[0].number()));
  const Value value = Value::Int(args[0].integer());
  return value.integer() < 0 ? Unary(e.heap, "-", value) : value;
}

Value Safe(Context& e, const Args& args) {
  return e.heap.Text(ToText(e.heap, args[0]), /*safe=*/true);
}
Value EscapeFilter(Context& e, const Args& args) { return Escape(e.heap, args[0]); }

Value Format(Context& e, const Args& args) {
  const Value format = SoftText(e.heap, args[0]);
  if (!args.named.empty() && args.at.size() > 1) {
    e.heap.TypeError("can't handle positional and keyword arguments at the same time");
  }
  if (args.named.empty()) {
    return FormatPercent(e.heap, format,
                         e.heap.Make(Kind::kTuple, {args.at.begin() + 1, args.at.end()}));
  }
  const Value values = e.heap.MakeDict();
  for (const auto& [name, value] : args.named) {
    e.heap.Set(values, e.heap.Text(std::string(name)), value);
  }
  return FormatPercent(e.heap, format, values);
}

Value Indent(Context& e, const Args& args) {
  const Value value = args[0];
  if (value.is_undefined()) e.heap.Undefined(value);
  if (!value.is_string()) e.heap.TypeError("only text can be indented");
  std::string indent;
  if (args[1].is_string()) {
    indent = args[1].text();
  } else {
    const int64_t width = std::max<int64_t>(args.IntegerOr(e.heap, 1, 4), 0);
    e.heap.SpendEach(width, 1);
    indent.assign(width, ' ');
  }
  const bool first = args.TruthOr(2, false), blank = args.TruthOr(3, false);
  e.heap.Spend(2 * value.text().size());
  const std::string all = std::string(value.text()) + "\n";
  const std::vector<std::string_view> lines = SplitLines(all, /*keep_ends=*/false);
  e.heap.SpendEach(lines.size(), indent.size() + 1);
  std::string text = first ? indent : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += '\n';
    if (i > 0 && (blank || !lines[i].empty())) text += indent;
    text += lines[i];
  }
  return e.heap.Text(std::move(text), value.string().safe);
}

Value Truncate(Context& e, const Args& args) {
  const Value value = args[0];
  const int64_t length = args.IntegerOr(e.heap, 1, 255);
  const bool kill_words = args.TruthOr(2, false);
  const std::string end = args[3].given() ? ToText(e.heap, args[3]) : "...";
  const int64_t leeway = args[4].is_none() ? 5 : args.IntegerOr(e.heap, 4, 5);
  const int64_t n_end = model::CountChars(end);
  if (length < n_end || leeway < 0) e.heap.Fail(ErrorKind::kType, "AssertionError: truncate()");
  const int64_t size = Length(e.heap, value);
  if (size <= length || size - length <= leeway) return value;
  if (!value.is_string()) e.heap.TypeError("only text can be truncated");
  std::string text(value.text().substr(0, PrefixBytes(value.text(), length - n_end)));
  if (!kill_words) text = text.substr(0, text.rfind(' '));
  return e.heap.Text(text + end, value.string().safe);
}

// Words are runs of letters, digits and underscores.
Value WordCount(Context& e, const Args& args) {
  const Value value = SoftText(e.heap, args[0]);
  e.heap.Spend(value.text().size());
  int64_t n = 0;
  bool in_word = false;
  for (size_t at = 0; at < value.text().size();) {
    const char32_t c = model::NextChar(value.text(), at);
    const bool is_word = model::IsLetter(c) || model::IsNumber(c) || c == U'_';
    n += is_word && !in_word;
    in_word = is_word;
  }
  return Value::Int(n);
}

constexpr Builtin kValueFilters[] = {
    {"tojson", "value ensure_ascii? indent? separators? sort_keys?", ToJsonFilter},
    {"length", "value", LengthFilter},
    {"count", "value", LengthFilter},
    {"trim", "value chars?", Method<kStrip>},
    {"upper", "value", Method<kUpper>},
    {"lower", "value", Method<kLower>},
    {"capitalize", "value", Method<kCapitalize>},
    {"title", "value", TitleFilter},
    {"replace", "value old new count?", ReplaceFilter},
    {"default", "value default_value? boolean?", Default},
    {"d", "value default_value? boolean?", Default},
    {"string", "value", StringFilter},
    {"int", "value default? base?", IntFilter},
    {"float", "value default?", FloatFilter},
    {"round", "value precision? method?", Round},
    {"abs", "value", Abs},
    {"safe", "value", Safe},
    {"escape", "value", EscapeFilter},
    {"e", "value", EscapeFilter},
    {"format", "value * **", Format},
    {"indent", "value width? first? blank?", Indent},
    {"truncate", "value length? killwords? end? leeway?", Truncate},
    {"wordcount", "value", WordCount},
};

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  const Builtin* filter = FindIn(kValueFilters, name);
  return filter != nullptr ? filter : FindListFilter(name);
}

}  // namespace ovq::jinja
