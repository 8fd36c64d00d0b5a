// FormatPercent and FormatBraces of print.h: Python's two kinds of string formatting.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "model/chat_template/operators.h"
#include "model/chat_template/print.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

// The format of one value, common to % and str.format.
struct Spec {
  std::string_view fill = " ";
  char align = '\0';   // < > ^ =
  char sign = '\0';    // - + or a blank
  bool zeros = false;  // `fill` stands behind the sign of a number, unless it is aligned otherwise
  bool alternate = false, commas = false;
  int64_t width = 0, precision = -1;
  char type = '\0';
};

class Formatter {
 public:
  explicit Formatter(Heap& heap) : heap_(heap) {}

 protected:
  // Consumes the digits at the front of `text`; -1 if there are none.
  int64_t ConsumeNumber(std::string_view& text) {
    int64_t number = -1;
    while (!text.empty() && text.front() >= '0' && text.front() <= '9') {
      number = std::max<int64_t>(number, 0) * 10 + (text.front() - '0');
      if (number > INT32_MAX) heap_.ValueError("too many decimal digits in format string");
      text.remove_prefix(1);
    }
    return number;
  }

  // Consumes the first character if it is one of `chars`; '\0' if it is not.
  static char ConsumeAny(std::string_view chars, std::string_view& text) {
    if (text.empty() || chars.find(text[0]) == chars.npos) return '\0';
    const char found = text[0];
    text.remove_prefix(1);
    return found;
  }

  std::string Number(const Spec& spec, Value value) {
    if (!value.is_number()) {
      heap_.TypeError("a number is required, not ", TypeName(value));
    }
    const bool is_whole = std::string_view("dixXobu").find(spec.type) != std::string_view::npos;
    bool negative = std::signbit(value.number());
    std::string digits;
    if (is_whole) {
      const int64_t whole = Whole(spec, value);
      negative = whole < 0;
      digits = Integer(spec, negative ? 0 - static_cast<uint64_t>(whole) : whole);
    } else {
      digits = Float(spec, std::abs(value.number()));
    }
    std::string sign = negative ? "-" : "";
    if (!negative && (spec.sign == '+' || spec.sign == ' ')) sign = spec.sign;
    const bool has_base = std::string_view("xXob").find(spec.type) != std::string_view::npos;
    if (spec.alternate && has_base) sign += {'0', spec.type};
    const char default_align = spec.zeros ? '=' : '>';
    if (spec.commas) {
      // Zeros that fill are digits.
      const char align = spec.align == '\0' ? default_align : spec.align;
      const bool has_zeros = align == '=' && spec.fill == "0";
      digits = WithCommas(digits, has_zeros ? spec.width - std::ssize(sign) : 0);
    }
    return Padded(spec, sign, digits, default_align);
  }

  std::string Text(Spec spec, std::string text, char align) {
    if (spec.precision >= 0) text.resize(PrefixBytes(text, spec.precision));
    return Padded(spec, "", text, align);
  }

  Heap& heap_;

 private:
  int64_t Whole(const Spec& spec, Value value) {
    if (value.is_integer()) return value.integer();
    if (std::string_view("xXo").find(spec.type) != std::string_view::npos) {
      heap_.TypeError("an integer is required, not float");
    }
    if (std::abs(value.number()) >= 0x1p63) heap_.ValueError("a number is too large");
    return static_cast<int64_t>(value.number());
  }

  // Prints a number by a format of C's that takes a precision.
  std::string Print(const std::string& format, int precision, double number) {
    // The longest double has 309 digits before the point.
    const size_t size = static_cast<size_t>(precision) + 320;
    heap_.Spend(size);
    std::string digits(size, '\0');
    digits.resize(std::snprintf(digits.data(), size, format.c_str(), precision, number));
    return digits;
  }

  std::string Float(const Spec& spec, double number) {
    if (spec.type == '\0') {
      if (spec.precision >= 0 && std::isfinite(number)) return Untyped(spec, number);
      std::string digits = FloatText(number);
      const size_t exponent = digits.find('e');
      const bool has_point = digits.find('.') != digits.npos;
      if (spec.alternate && exponent != digits.npos && !has_point) digits.insert(exponent, 1, '.');
      return digits;
    }
    const std::string begin = spec.alternate ? "%#.*" : "%.*";
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    if (spec.type == '%') return Print(begin + "f", precision, 100 * number) + "%";
    return Print(begin + spec.type, precision, number);
  }

  // Python's form of a float without a type differs from %g: a digit follows the point, and a
  // number that has no room for it within the precision has an exponent.
  std::string Untyped(const Spec& spec, double number) {
    const int precision = std::max(static_cast<int>(spec.precision), 1);
    std::string digits = Print(spec.alternate ? "%#.*e" : "%.*e", precision - 1, number);
    const size_t mantissa = digits.find('e');
    const int exponent = std::atoi(digits.c_str() + mantissa + 1);
    if (exponent >= -4 && exponent < precision - 1) {
      digits = Print(spec.alternate ? "%#.*g" : "%.*g", precision, number);
      return digits.find('.') == digits.npos ? digits + ".0" : digits;
    }
    if (spec.alternate || precision == 1) return digits;
    const size_t last = digits.find_last_not_of('0', mantissa - 1);
    const size_t end = digits[last] == '.' ? last : last + 1;
    return digits.erase(end, mantissa - end);
  }

  // The digits, at least as many as the precision says.
  std::string Integer(const Spec& spec, uint64_t value) {
    const char type = absl::ascii_tolower(spec.type);
    const int base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'x' ? 16 : 10;
    char buffer[64];
    std::string digits(buffer, std::to_chars(buffer, std::end(buffer), value, base).ptr);
    if (spec.type == 'X') absl::AsciiStrToUpper(&digits);
    const int64_t n_zeros = std::max<int64_t>(spec.precision - std::ssize(digits), 0);
    heap_.Spend(n_zeros);
    return std::string(n_zeros, '0') + digits;
  }

  // The number with commas between its whole digits, and zeros before them up to the width.
  std::string WithCommas(const std::string& number, int64_t width) {
    const size_t end = std::min(number.find_first_not_of("0123456789"), number.size());
    const auto n_digits = static_cast<int64_t>(end);
    if (n_digits == 0) return number;  // inf, nan
    int64_t n = n_digits;
    const auto size = [&] { return std::ssize(number) + n - n_digits + (n - 1) / 3; };
    heap_.Spend(std::max<int64_t>(width - size(), 0));
    while (size() < width) ++n;
    std::string grouped;
    for (int64_t left = n; left > 0; --left) {
      if (left < n && left % 3 == 0) grouped += ',';
      grouped += left > n_digits ? '0' : number[n_digits - left];
    }
    return grouped + number.substr(end);
  }

  std::string Padded(const Spec& spec, const std::string& sign, const std::string& body,
                     char default_align) {
    const int64_t size = model::CountChars(body) + sign.size();
    const int64_t n = std::max<int64_t>(spec.width - size, 0);
    heap_.SpendEach(n, spec.fill.size());
    const char align = spec.align == '\0' ? default_align : spec.align;
    const int64_t n_before = align == '<' || align == '=' ? 0 : align == '^' ? n / 2 : n;
    std::string padded;
    for (int64_t i = 0; i < n_before; ++i) padded += spec.fill;
    padded += sign;
    for (int64_t i = 0; align == '=' && i < n; ++i) padded += spec.fill;
    padded += body;
    for (int64_t i = n_before; align != '=' && i < n; ++i) padded += spec.fill;
    return padded;
  }
};

class Percent : Formatter {
 public:
  Percent(Heap& heap, Value values) : Formatter(heap), values_(values) {}

  std::string Run(std::string_view rest) {
    std::string text;
    for (size_t at = rest.find('%'); at != std::string_view::npos; at = rest.find('%')) {
      text += rest.substr(0, at);
      rest.remove_prefix(at + 1);
      text += One(rest);
    }
    // A dict or list may remain unused, as in Python.
    const bool is_mapping = values_.is(Kind::kDict) || values_.is(Kind::kList);
    const size_t n = values_.is(Kind::kTuple) ? values_.items().size() : 1;
    if (!is_mapping && next_ < n) {
      heap_.TypeError("not all arguments converted during string formatting");
    }
    return text += rest;
  }

 private:
  // Formats one item, consuming what follows a %.
  std::string One(std::string_view& rest) {
    if (ConsumeAny("%", rest)) return "%";
    Value named;
    if (rest.starts_with('(')) {
      const size_t end = rest.find(')');
      if (end == std::string_view::npos) heap_.ValueError("incomplete format key");
      if (!values_.is(Kind::kDict)) heap_.TypeError("format requires a mapping");
      const std::string key(rest.substr(1, end - 1));
      const Value* found = values_.As<Dict>().FindName(key);
      if (found == nullptr) heap_.Fail(ErrorKind::kType, "KeyError: '", key, "'");
      named = *found;
      rest.remove_prefix(end + 1);
    }
    Spec spec;
    while (const char flag = ConsumeAny("-+ #0", rest)) {
      if (flag == '-') spec.align = '<';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
      spec.alternate |= flag == '#';
      spec.zeros |= flag == '0';
    }
    spec.width = ConsumeNumber(rest);
    if (ConsumeAny(".", rest)) spec.precision = std::max<int64_t>(ConsumeNumber(rest), 0);
    if (rest.empty()) heap_.ValueError("incomplete format");
    spec.type = rest[0];
    rest.remove_prefix(1);
    const Value value = named.given() ? named : Next();
    if (spec.type == 's') return Text(spec, ToText(heap_, value), '>');
    if (spec.type == 'r') return Text(spec, ToRepr(heap_, value), '>');
    if (std::string_view("diuxXofFeEgG").find(spec.type) == std::string_view::npos) {
      heap_.ValueError("unsupported format character");
    }
    if (spec.zeros && spec.align == '\0') spec.fill = "0";
    return Number(spec, value);
  }

  Value Next() {
    const bool is_tuple = values_.is(Kind::kTuple);
    if (next_ >= (is_tuple ? values_.items().size() : 1)) {
      heap_.TypeError("not enough arguments for format string");
    }
    return is_tuple ? values_.items()[next_++] : (++next_, values_);
  }

  const Value values_;
  size_t next_ = 0;
};

class Braces : Formatter {
 public:
  Braces(Heap& heap, const Args& args) : Formatter(heap), args_(args) {}

  std::string Run(std::string_view rest) {
    std::string text;
    for (size_t at = rest.find_first_of("{}"); at != std::string_view::npos;
         at = rest.find_first_of("{}")) {
      text += rest.substr(0, at);
      const char brace = rest[at];
      rest.remove_prefix(at + 1);
      if (rest.starts_with(brace)) {
        text += brace;
        rest.remove_prefix(1);
      } else if (brace == '}') {
        heap_.ValueError("Single '}' encountered in format string");
      } else {
        const size_t end = rest.find('}');
        if (end == std::string_view::npos) heap_.ValueError("expected '}' before end of string");
        text += Field(rest.substr(0, end));
        rest.remove_prefix(end + 1);
      }
    }
    return text += rest;
  }

 private:
  enum class Numbering : uint8_t { kNone, kAutomatic, kManual };

  // Formats one field name!conversion:spec.
  std::string Field(std::string_view field) {
    const size_t name_end = std::min(field.find_first_of("!:"), field.size());
    Value value = Place(field.substr(0, name_end));
    field.remove_prefix(name_end);
    if (field.starts_with('!')) {
      if (field.size() < 2 || (field[1] != 'r' && field[1] != 's'))
        heap_.ValueError("unknown conversion");
      value = heap_.Text(field[1] == 'r' ? ToRepr(heap_, value) : ToText(heap_, value));
      field.remove_prefix(2);
    }
    if (field.starts_with(':')) {
      field.remove_prefix(1);
    } else if (!field.empty()) {
      heap_.ValueError("expected ':' after conversion specifier");
    }
    if (field.empty()) return ToText(heap_, value);
    Spec spec = ReadSpec(field);
    const bool is_text = value.is_string() && (spec.type == 's' || spec.type == '\0');
    if (is_text) {
      if (spec.sign != '\0' || spec.alternate || spec.commas || spec.align == '=') {
        heap_.ValueError(
            "a text has neither a sign nor #, a comma or the alignment = in its format");
      }
      return Text(spec, std::string(value.text()), '<');
    }
    if (!value.is_number()) heap_.TypeError("unsupported format string for this type of value");
    if (spec.type == '\0' && value.is_integer()) spec.type = 'd';
    const bool is_whole = std::string_view("dxXob").find(spec.type) != std::string_view::npos;
    const bool is_known =
        is_whole ? value.is_integer() && spec.precision < 0 && (!spec.commas || spec.type == 'd')
                 : std::string_view("\0fFeEgG%", 8).find(spec.type) != std::string_view::npos;
    if (!is_known) heap_.ValueError("invalid format specifier");
    return Number(spec, value);
  }

  // Follows which fields have numbers. Jinja looks at those alone that have no attributes or items.
  void CheckNumbering(bool automatic) {
    if (numbering_ == (automatic ? Numbering::kManual : Numbering::kAutomatic)) {
      heap_.ValueError("a format has fields with numbers and fields without");
    }
    numbering_ = automatic ? Numbering::kAutomatic : Numbering::kManual;
  }

  // Looks up an argument, then its attributes and items.
  Value Place(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    std::string_view first = name.substr(0, end);
    Value value;
    const std::string_view digits = first.substr(0, first.find_first_not_of("0123456789"));
    if (digits.size() == first.size()) {
      if (first.size() == name.size()) CheckNumbering(first.empty());
      const int64_t at = first.empty() ? next_++ : ConsumeNumber(first);
      value = args_[static_cast<size_t>(at) + 1];  // args_[0] is the format itself
    } else {
      for (const auto& [key, named] : args_.named) {
        if (key == first) value = named;
      }
    }
    if (!value.given()) heap_.Fail(ErrorKind::kType, "IndexError: no argument for a format field");
    name.remove_prefix(end);
    while (!name.empty()) {
      const bool is_item = name[0] == '[';
      name.remove_prefix(1);
      const size_t stop =
          std::min(is_item ? name.find(']') : name.find_first_of(".["), name.size());
      std::string_view part = name.substr(0, stop);
      name.remove_prefix(std::min(stop + is_item, name.size()));
      if (!is_item) {
        value = Attribute(heap_, value, part);
        continue;
      }
      const Value key = heap_.Text(part);
      const int64_t number = ConsumeNumber(part);
      value = Item(heap_, value, number >= 0 && part.empty() ? Value::Int(number) : key);
    }
    heap_.RequireDefined(value);
    return value;
  }

  Spec ReadSpec(std::string_view text) {
    constexpr std::string_view kAligns = "<>^=";
    Spec spec;
    bool has_fill = false;
    std::string_view behind = text.substr(PrefixBytes(text, 1));
    if ((spec.align = ConsumeAny(kAligns, behind))) {
      spec.fill = text.substr(0, text.size() - behind.size() - 1);
      text = behind;
      has_fill = true;
    } else {
      spec.align = ConsumeAny(kAligns, text);
    }
    if (const char sign = ConsumeAny("+- ", text)) spec.sign = sign;
    spec.alternate = ConsumeAny("#", text);
    if (text.starts_with('0') && !has_fill) {
      spec.fill = "0";
      spec.zeros = true;
    }
    spec.width = ConsumeNumber(text);
    spec.commas = ConsumeAny(",", text);
    if (ConsumeAny(".", text)) {
      spec.precision = ConsumeNumber(text);
      if (spec.precision < 0) heap_.ValueError("format specifier missing precision");
    }
    if (text.size() > 1) heap_.ValueError("invalid format specifier");
    if (!text.empty()) spec.type = text[0];
    return spec;
  }

  const Args& args_;
  int64_t next_ = 0;
  Numbering numbering_ = Numbering::kNone;  // of the fields so far that have no names
};

}  // namespace

Value FormatPercent(Heap& heap, Value format, Value values) {
  return heap.Text(Percent(heap, values).Run(format.text()), format.is_safe());
}

Value FormatBraces(Heap& heap, const Args& args) {
  return heap.Text(Braces(heap, args).Run(args[0].text()), args[0].is_safe());
}

}  // namespace ovq::jinja
