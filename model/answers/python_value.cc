#include "model/answers/python_value.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "model/answers/marker.h"

namespace ovq::answers {
namespace {

std::optional<uint32_t> Digits(std::string_view text, size_t n, uint32_t base) {
  if (text.size() < n) return std::nullopt;
  uint32_t value = 0;
  for (const char c : text.substr(0, n)) {
    const std::optional<uint32_t> digit = HexDigit(c);
    if (!digit || *digit >= base) return std::nullopt;
    value = value * base + *digit;
  }
  return value;
}

void AddCode(uint32_t code, std::string& json) {
  if (code < 0x10000) {
    absl::StrAppendFormat(&json, "\\u%04x", code);
  } else {
    absl::StrAppendFormat(&json, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
  }
}

// A character of a text that no backslash precedes.
void AddPlain(char c, std::string& json) {
  if (static_cast<unsigned char>(c) < 0x20) return AddCode(static_cast<unsigned char>(c), json);
  if (c == '"' || c == '\\') json += '\\';
  json += c;
}

// Adds the escape that begins the text, behind its backslash, and returns its length.
size_t AddEscape(std::string_view text, std::string& json) {
  constexpr std::pair<char, uint32_t> kControls[] = {{'a', 0x7}, {'v', 0xb}};
  constexpr std::pair<char, size_t> kCodes[] = {{'x', 2}, {'u', 4}, {'U', 8}};
  const char c = text.front();
  for (const auto& [letter, code] : kControls) {
    if (c != letter) continue;
    AddCode(code, json);
    return 1;
  }
  for (const auto& [letter, n_digits] : kCodes) {
    const std::optional<uint32_t> code = Digits(text.substr(1), n_digits, 16);
    if (c != letter || !code || *code > 0x10ffff) continue;
    AddCode(*code, json);
    return 1 + n_digits;
  }
  for (size_t n_digits = 3; n_digits > 0; --n_digits) {
    const std::optional<uint32_t> code = Digits(text, n_digits, 8);
    if (!code) continue;
    AddCode(*code, json);
    return n_digits;
  }
  if (c == '\n') return 1;  // the text goes on in the next line
  if (c == '\'') {
    json += c;
  } else if (std::string_view("\"\\bfnrt").find(c) != std::string_view::npos) {
    json += {'\\', c};
  } else {  // Python keeps the backslash of an escape that it does not know.
    AddPlain('\\', json);
    AddPlain(c, json);
  }
  return 1;
}

// The prefix of a text literal: "r" keeps backslashes, "u" says nothing.
bool IsTextPrefix(std::string_view word) {
  return word == "r" || word == "R" || word == "u" || word == "U";
}

bool InWord(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
}

// The base that a number's prefix names, 10 without one.
uint32_t NumberBase(std::string_view word) {
  if (word.size() < 2 || word[0] != '0') return 10;
  const char letter = absl::ascii_tolower(static_cast<unsigned char>(word[1]));
  return letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
}

// The digits without the underscores between them; nothing if one stands elsewhere.
std::optional<std::string> WithoutUnderscores(std::string_view word, uint32_t base) {
  std::string digits;
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '_') {
      digits += word[i];
      continue;
    }
    const auto is_digit = [&](size_t at) {
      return at < word.size() && HexDigit(word[at]).value_or(base) < base;
    };
    const bool follows_base = i == 2 && base != 10;
    if (!is_digit(i + 1) || !(follows_base || (i > 0 && is_digit(i - 1)))) return std::nullopt;
  }
  return digits;
}

// A number without its sign, as JSON writes it.
std::optional<std::string> NumberAsJson(std::string_view word) {
  const uint32_t base = NumberBase(word);
  const std::optional<std::string> digits = WithoutUnderscores(word, base);
  if (!digits) return std::nullopt;
  if (base != 10) {
    uint64_t value = 0;
    const char* const end = digits->data() + digits->size();
    const auto [at, error] =
        std::from_chars(digits->data() + 2, end, value, static_cast<int>(base));
    if (error != std::errc() || at != end) return std::nullopt;
    return absl::StrCat(value);
  }
  // JSON has digits on both sides of a point, and no zero before others.
  const size_t n_whole = std::min(digits->find_first_not_of("0123456789"), digits->size());
  const bool is_whole = n_whole == digits->size();
  const size_t n_zeros = std::min(digits->find_first_not_of('0'), n_whole);
  if (is_whole && n_zeros > 0 && n_zeros < n_whole) return std::nullopt;
  std::string number = digits->substr(n_zeros, n_whole - n_zeros);
  if (number.empty()) {
    if (n_whole == 0 && (is_whole || (*digits)[0] != '.')) return std::nullopt;
    number = "0";
  }
  absl::StrAppend(&number, digits->substr(n_whole));
  const size_t point = number.find('.');
  const bool has_digit = point + 1 < number.size() &&
                         absl::ascii_isdigit(static_cast<unsigned char>(number[point + 1]));
  if (point != std::string::npos && !has_digit) {
    if (n_whole == 0) return std::nullopt;
    number.insert(point + 1, 1, '0');
  }
  return nlohmann::json::accept(number) ? std::optional(number) : std::nullopt;
}

// Reads a literal token by token, and writes it as JSON, with the white space of the literal.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}

  // Nothing where the text is no literal that JSON can write.
  std::optional<std::string> Read() {
    while (at_ < text_.size()) {
      if (!ReadToken(text_[at_])) return std::nullopt;
    }
    if (!open_.empty() || !nlohmann::json::accept(json_)) return std::nullopt;
    return json_;
  }

 private:
  enum class Last : uint8_t { kOther, kSign, kValue, kText };
  struct Open {
    char bracket;
    size_t at;  // of its bracket in json_
    bool has_comma = false;
  };

  bool ReadToken(char c) {
    if (IsSpace(c)) {
      json_ += c;
      ++at_;
      return true;
    }
    if (c == '"' || c == '\'') return ReadText(/*raw=*/false);
    if (InWord(c) || c == '-' || c == '+') return ReadWord(c);
    if (last_ == Last::kSign) return false;
    ++at_;
    if (c == '(' || c == '[' || c == '{') {
      if (ends_value()) return false;  // a call or an index
      open_.push_back({c, json_.size()});
      Put(c == '(' ? "[" : std::string_view(&c, 1));
      last_ = Last::kOther;
      return true;
    }
    if (c == ')' || c == ']' || c == '}') return Close(c);
    if (open_.empty() || !ends_value()) return false;
    if (c != ',' && (c != ':' || open_.back().bracket != '{')) return false;
    if (c == ',') open_.back().has_comma = true;
    if (c == ':' && last_ == Last::kValue) QuoteKey();
    Put(std::string_view(&c, 1));
    last_ = Last::kOther;
    return true;
  }

  bool ends_value() const { return last_ == Last::kValue || last_ == Last::kText; }

  // Adds what is no white space.
  void Put(std::string_view text) {
    json_ += text;
    end_ = json_.size();
  }

  // A comma may stand before the bracket. Parentheses around one value and no comma are none.
  bool Close(char c) {
    if (open_.empty()) return false;
    const Open open = open_.back();
    open_.pop_back();
    if ((open.bracket == '(') != (c == ')')) return false;
    if (c == ')' && !open.has_comma && end_ > open.at + 1) {
      json_[open.at] = ' ';  // the value keeps its kind: a text may join the next one
      return true;
    }
    if (json_[end_ - 1] == ',') json_.resize(end_ - 1);
    Put(c == ')' ? "]" : std::string_view(&c, 1));
    last_ = Last::kValue;
    value_at_ = std::string::npos;
    return true;
  }

  // A key of JSON is a text.
  void QuoteKey() {
    if (value_at_ == std::string::npos) return;
    json_.insert(end_, 1, '"');
    json_.insert(value_at_, 1, '"');
    end_ += 2;
  }

  bool ReadWord(char c) {
    if (c == '-' || c == '+') {
      if (ends_value() || last_ == Last::kSign) return false;
      is_negative_ = c == '-';
      last_ = Last::kSign;
      while (++at_ < text_.size() && IsSpace(text_[at_])) continue;
      return at_ < text_.size();
    }
    size_t end = at_;
    while (end < text_.size() && InWord(text_[end])) ++end;
    const bool has_exponent = absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.';
    const bool is_hex = text_.substr(at_).starts_with("0x") || text_.substr(at_).starts_with("0X");
    const bool has_sign = end < text_.size() && (text_[end] == '-' || text_[end] == '+');
    if (has_exponent && !is_hex && has_sign && absl::ascii_tolower(text_[end - 1]) == 'e') {
      while (++end < text_.size() && InWord(text_[end])) continue;
    }
    const std::string_view word = text_.substr(at_, end - at_);
    const bool is_prefix = end < text_.size() && (text_[end] == '"' || text_[end] == '\'');
    if (is_prefix) {
      at_ = end;
      return IsTextPrefix(word) && ReadText(/*raw=*/absl::ascii_tolower(word[0]) == 'r');
    }
    at_ = end;
    return !ends_value() && AddScalar(word);
  }

  bool AddScalar(std::string_view word) {
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"True", "true"}, {"False", "false"}, {"None", "null"},
        {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const auto* named =
        std::ranges::find(kWords, word, &std::pair<std::string_view, std::string_view>::first);
    const bool is_signed = last_ == Last::kSign;
    value_at_ = json_.size();
    last_ = Last::kValue;
    if (named != std::end(kWords)) {
      Put(named->second);
      return !is_signed;
    }
    const std::optional<std::string> number = NumberAsJson(word);
    if (!number) return false;
    if (is_signed && is_negative_) json_ += '-';
    Put(*number);
    return true;
  }

  // A text, joined to the one before it where there is nothing but white space between them.
  bool ReadText(bool raw) {
    if (last_ == Last::kValue || last_ == Last::kSign) return false;
    if (last_ == Last::kText) {
      json_.resize(end_ - 1);
    } else {
      json_ += '"';
    }
    last_ = Last::kText;
    const char quote = text_[at_];
    const std::string three(3, quote);
    const std::string end = text_.substr(at_).starts_with(three) ? three : std::string(1, quote);
    at_ += end.size();
    while (at_ < text_.size()) {
      if (text_.substr(at_).starts_with(end)) {
        at_ += end.size();
        Put("\"");
        return true;
      }
      const char c = text_[at_++];
      if (c != '\\' || at_ == text_.size()) {
        AddPlain(c, json_);
      } else if (raw) {
        AddPlain(c, json_);
        AddPlain(text_[at_++], json_);
      } else {
        at_ += AddEscape(text_.substr(at_), json_);
      }
    }
    return false;
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string json_;
  size_t end_ = 0;  // of json_ without white space at its end, which no bracket looks for again
  std::vector<Open> open_;
  Last last_ = Last::kOther;
  bool is_negative_ = false;             // the sign that was read last
  size_t value_at_ = std::string::npos;  // where json_ has the last number or word
};

}  // namespace

std::string FromPython(const std::string& text) {
  using Json = nlohmann::json;
  if (Json::accept(text)) return text;
  if (std::optional<std::string> json = PythonReader(text).Read()) return *std::move(json);
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ovq::answers
