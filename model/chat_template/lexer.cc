#include "model/chat_template/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "model/chat_template/strings.h"
#include "model/tokenizers/chars.h"

namespace ovq::jinja {
namespace {

constexpr std::array<std::string_view, 27> kOperators = {
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
    "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "!"};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameByte(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         (c & 0x80) != 0;
}

// Converts line ends to \n and drops one at the end.
std::string Normalized(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    const bool is_crlf = source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n';
    if (!is_crlf) text += source[i] == '\r' ? '\n' : source[i];
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(Normalized(source)), text_(source_) {}

  std::vector<Token> Run() {
    while (at_ < text_.size()) Data();
    Add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void Fail(std::string message) const {
    throw Error{ErrorKind::kSyntax, line_, std::move(message)};
  }
  bool Has(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  void Add(TokenType type, std::string_view text) {
    tokens_.push_back({type, line_, std::string(text)});
  }
  void MoveTo(size_t end) {
    line_ += static_cast<int>(std::ranges::count(text_.substr(at_, end - at_), '\n'));
    at_ = end;
  }
  size_t AfterSpace(size_t from) const {
    const std::string_view rest = text_.substr(from);
    return from + (rest.size() - StripSpace(rest, true, false).size());
  }

  // Lexes text up to the next tag, and the tag.
  void Data() {
    size_t tag = at_;
    do {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == text_.size()) {
        Add(TokenType::kData, text_.substr(at_));
        return MoveTo(text_.size());
      }
      ++tag;
    } while (text_[tag] != '{' && text_[tag] != '%' && text_[tag] != '#');
    const char kind = text_[tag];
    AddData(tag - 1, SignAt(tag + 1), kind != '{');
    MoveTo(tag + 1 + (SignAt(tag + 1) != 0));
    if (kind == '#') return Comment();
    if (kind == '%' && Raw()) return;
    const bool is_print = kind == '{';
    Add(is_print ? TokenType::kPrintBegin : TokenType::kBlockBegin, "");
    Tag(is_print);
  }

  char SignAt(size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
  }

  // Adds the text before `end`, where a tag with this sign begins.
  void AddData(size_t end, char sign, bool is_block) {
    std::string_view data = text_.substr(at_, end - at_);
    if (sign == '-') {
      data = StripSpace(data, false, true);
    } else if (sign != '+' && is_block) {
      const size_t line_begin = data.rfind('\n') + 1;  // 0 if the text has no line end
      const bool begins_line = line_begin > 0 || at_ == 0 || text_[at_ - 1] == '\n';
      if (begins_line && StripSpace(data.substr(line_begin), true, false).empty()) {
        data = data.substr(0, line_begin);
      }
    }
    if (!data.empty()) Add(TokenType::kData, data);
    MoveTo(end);
  }

  // Offset after the end of a block or comment at `close`, where `sign` precedes the end.
  size_t AfterBlock(size_t close, char sign) const {
    const size_t behind = close + 2;
    if (sign == '-') return AfterSpace(behind);
    return behind + (sign != '+' && behind < text_.size() && text_[behind] == '\n');
  }

  void Comment() {
    const size_t close = text_.find("#}", at_);
    if (close == std::string_view::npos) Fail("a comment has no end '#}'");
    MoveTo(AfterBlock(close, close > at_ ? SignAt(close - 1) : '\0'));
  }

  // Lexes a raw block, "raw" between blanks and an end of block; everything up to endraw is text.
  // False if there is none.
  bool Raw() {
    size_t behind = AfterSpace(at_);
    if (!text_.substr(behind).starts_with("raw")) return false;
    behind = AfterSpace(behind + 3);
    if (text_.substr(behind).starts_with("-%}")) {
      MoveTo(AfterSpace(behind + 3));
    } else if (text_.substr(behind).starts_with("%}")) {
      MoveTo(behind + 2);
    } else {
      return false;
    }
    for (size_t tag = text_.find("{%", at_); tag != std::string_view::npos;
         tag = text_.find("{%", tag + 2)) {
      const char sign = SignAt(tag + 2);
      const size_t name = AfterSpace(tag + 2 + (sign != 0));
      if (!text_.substr(name).starts_with("endraw")) continue;
      const size_t end = AfterSpace(name + 6);
      const char end_sign = SignAt(end);
      const size_t close = end + (end_sign != 0);
      if (!text_.substr(close).starts_with("%}")) continue;
      AddData(tag, sign, /*is_block=*/true);
      MoveTo(AfterBlock(close, end_sign));
      return true;
    }
    Fail("a raw block has no end '{% endraw %}'");
  }

  // Lexes tokens up to the end of a tag. Inside brackets the end's characters are operators.
  void Tag(bool is_print) {
    const std::string_view close = is_print ? "}}" : "%}";
    std::string open;
    while (true) {
      MoveTo(AfterSpace(at_));
      if (at_ == text_.size()) Fail(absl::StrCat("a tag has no end '", std::string(close), "'"));
      const char sign = SignAt(at_);
      const bool can_sign = sign == '-' || (sign == '+' && !is_print);
      const size_t end = at_ + can_sign;
      if (open.empty() && text_.substr(end).starts_with(close)) {
        Add(is_print ? TokenType::kPrintEnd : TokenType::kBlockEnd, "");
        if (is_print) return MoveTo(can_sign ? AfterSpace(end + 2) : end + 2);
        return MoveTo(AfterBlock(end, sign));
      }
      if (text_[at_] == '"' || text_[at_] == '\'') {
        String();
      } else if (IsDigit(text_[at_])) {
        Number();
      } else if (IsNameByte(text_[at_])) {
        size_t behind = at_;
        while (behind < text_.size() && IsNameByte(text_[behind])) ++behind;
        Add(TokenType::kName, text_.substr(at_, behind - at_));
        MoveTo(behind);
      } else {
        Operator(open);
      }
    }
  }

  void Operator(std::string& open) {
    const auto found = std::ranges::find_if(kOperators, [&](auto name) { return Has(name); });
    if (found == kOperators.end() || *found == "!") {
      Fail(absl::StrCat("unexpected character ", Quoted(text_.substr(at_, 1))));
    }
    const char c = found->front();
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : static_cast<char>(c + 2);
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c)
        Fail(absl::StrCat("unexpected '", std::string(*found), "'"));
      open.pop_back();
    }
    Add(TokenType::kOperator, *found);
    MoveTo(at_ + found->size());
  }

  // Offset after digits of this base with single underscores between them; `from` if there are
  // none.
  size_t AfterDigits(size_t from, uint32_t base = 10) const {
    const auto is_digit = [&](size_t at) {
      return at < text_.size() && HexDigit(text_[at]).value_or(base) < base;
    };
    size_t at = from;
    while (is_digit(at) ||
           (at > from && at < text_.size() && text_[at] == '_' && is_digit(at + 1))) {
      ++at;
    }
    return at;
  }

  void Number() {
    const size_t begin = at_;
    int base = 10;
    if (text_[at_] == '0' && at_ + 1 < text_.size()) {
      const char letter = text_[at_ + 1] | 0x20;
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    if (base != 10) {
      const size_t end = AfterDigits(begin + 2, base);
      if (end == begin + 2) Fail("a number without digits");
      return AddInteger(begin + 2, end, base);
    }
    size_t end = AfterDigits(begin);
    const size_t whole = end;
    // "x.0.1" is two items, not one of number 0.1.
    if (begin == 0 || text_[begin - 1] != '.') {
      if (end + 1 < text_.size() && text_[end] == '.') {
        const size_t fraction = AfterDigits(end + 1);
        if (fraction > end + 1) end = fraction;
      }
      if (end < text_.size() && (text_[end] | 0x20) == 'e') {
        const size_t exponent = AfterDigits(end + 1 + (SignAt(end + 1) != 0));
        if (IsDigit(text_[exponent - 1])) end = exponent;
      }
    }
    if (end == whole) return AddInteger(begin, end, base);
    std::string digits(text_.substr(begin, end - begin));
    std::erase(digits, '_');
    Add(TokenType::kFloat, digits);
    tokens_.back().real = std::strtod(digits.c_str(), nullptr);
    MoveTo(end);
  }

  void AddInteger(size_t begin, size_t end, int base) {
    std::string digits(text_.substr(begin, end - begin));
    std::erase(digits, '_');
    Add(TokenType::kInteger, digits);
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), tokens_.back().integer, base);
    if (error != std::errc()) Fail("an integer of more than 64 bits");
    if (base == 10 && digits.size() > 1 && digits[0] == '0' && tokens_.back().integer != 0) {
      Fail("an integer that begins with 0");
    }
    MoveTo(end);
  }

  void String() {
    const char quote = text_[at_];
    std::string value;
    size_t at = at_ + 1;
    for (; at < text_.size() && text_[at] != quote; ++at) {
      if (text_[at] != '\\') {
        value += text_[at];
      } else if (++at < text_.size()) {
        Escape(at, value);
      }
    }
    if (at >= text_.size()) Fail("a string has no end");
    Add(TokenType::kString, value);
    MoveTo(at + 1);
  }

  // Evaluates a backslash escape as Python does. `at` is after the backslash and moves to the last
  // byte of the escape.
  void Escape(size_t& at, std::string& value) {
    constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    const char c = text_[at];
    if (const size_t i = kFrom.find(c); i != std::string_view::npos) {
      value += kTo[i];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      Character(at + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, value);
      at += c == 'x' ? 2 : c == 'u' ? 4 : 8;
    } else if (c >= '0' && c <= '7') {
      size_t n = 1;
      while (n < 3 && at + n < text_.size() && text_[at + n] >= '0' && text_[at + n] <= '7') ++n;
      Character(at, n, 8, value);
      at += n - 1;
    } else if (c != '\n') {
      value += '\\';
      value += c;
    }
  }

  void Character(size_t at, size_t n_digits, int base, std::string& value) {
    uint32_t c = 0;
    const std::string_view digits = text_.substr(at, n_digits);
    const auto [last, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), c, base);
    const bool is_char = error == std::errc() && digits.size() == n_digits &&
                         last == digits.data() + n_digits && c <= 0x10ffff &&
                         !(c >= 0xd800 && c <= 0xdfff);
    if (!is_char) Fail("a string has an escape that is no character");
    model::AppendChar(c, value);
  }

  const std::string source_;
  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Lex(std::string_view source) { return Lexer(source).Run(); }

void TokenReader::Unexpected(const std::string& expected) const {
  const auto found = [this]() -> std::string {
    switch (current().type) {
      case TokenType::kData:
        return "text";
      case TokenType::kPrintBegin:
      case TokenType::kBlockBegin:
        return "the begin of a tag";
      case TokenType::kPrintEnd:
      case TokenType::kBlockEnd:
        return "the end of the tag";
      case TokenType::kEnd:
        return "the end of the template";
      default:
        return Quoted(current().text);
    }
  };
  Fail(absl::StrCat("expected ", expected, ", got ", found()));
}

}  // namespace ovq::jinja
