// GBNF, the grammars of llama.cpp: rules `name ::= alternatives` with literals, classes of
// characters, groups and repetitions.
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/constraint/constraint.h"
#include "model/constraint/utf8_ranges.h"

namespace ovq::constraint {
namespace {

constexpr int64_t kMaxRepeat = 1'000'000'000;

class GbnfParser {
 public:
  GbnfParser(std::string_view text, Grammar& grammar, const Limits& limits)
      : text_(text), grammar_(grammar), limits_(limits) {}

  absl::StatusOr<Grammar::Node> Parse() {
    if (const std::optional<size_t> invalid = FirstInvalidUtf8(text_)) {
      return Error(*invalid, "the grammar is not UTF-8");
    }
    SkipSpace(true);
    while (at_ < text_.size()) RETURN_IF_ERROR(ParseRule());
    for (const auto& [name, rule] : rules_) {
      if (!rule.defined) {
        return Error(rule.first_use, absl::StrCat("rule ", Quoted(name), " is not defined"));
      }
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return Error(text_.size(), "there is no rule \"root\"");
    return root->second.node;
  }

 private:
  struct Rule {
    Grammar::Node node;
    size_t first_use;
    bool defined = false;
  };

  absl::Status Error(size_t offset, std::string_view what) const {
    size_t line = 1, column = 1;
    for (const char c : text_.substr(0, offset)) {
      if (c == '\n') {
        ++line;
        column = 1;
      } else if ((static_cast<uint8_t>(c) & 0xc0) != 0x80) {
        ++column;
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("line ", line, ", column ", column, ": ", AbslView(what)));
  }
  bool IsAt(std::string_view token) const { return text_.substr(at_).starts_with(token); }
  bool Consume(std::string_view token) {
    if (!IsAt(token)) return false;
    at_ += token.size();
    return true;
  }
  void SkipSpace(bool over_lines) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
        if (at_ == text_.size() || !over_lines) return;
      } else if (c != ' ' && c != '\t' && !(over_lines && (c == '\n' || c == '\r'))) {
        return;
      }
    }
  }
  std::string_view ParseName() {
    const size_t begin = at_;
    const auto is_word = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    };
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  Rule& FindRule(std::string_view name, size_t use) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    const Rule rule{grammar_.Rule(std::string(name)), use};
    return rules_.emplace(name, rule).first->second;
  }

  absl::Status ParseRule();
  absl::StatusOr<Grammar::Node> ParseAlternatives(int depth);
  absl::StatusOr<Grammar::Node> ParseSequence(int depth);
  absl::StatusOr<std::optional<Grammar::Node>> ParseItem(int depth);
  absl::StatusOr<Grammar::Node> ParseLiteral();
  absl::StatusOr<Grammar::Node> ParseClass();
  absl::StatusOr<char32_t> ParseCharacter();
  absl::StatusOr<char32_t> ParseEscape();
  absl::StatusOr<Grammar::Node> ParseRepeats(Grammar::Node item);
  absl::StatusOr<int64_t> ParseCount();
  Grammar::Node AddClass(std::vector<CodePointRange> ranges);

  std::string_view text_;
  Grammar& grammar_;
  const Limits& limits_;
  size_t at_ = 0;
  std::map<std::string, Rule, std::less<>> rules_;
  std::map<std::vector<char32_t>, Grammar::Node> classes_;
};

absl::Status GbnfParser::ParseRule() {
  const size_t begin = at_;
  const std::string_view name = ParseName();
  if (name.empty()) return Error(begin, "expected the name of a rule");
  SkipSpace(false);
  if (!Consume("::=")) return Error(at_, "expected ::= behind the name of a rule");
  const Grammar::Node node = FindRule(name, begin).node;
  if (FindRule(name, begin).defined) {
    return Error(begin, absl::StrCat("rule ", Quoted(name), " is defined twice"));
  }
  FindRule(name, begin).defined = true;
  SkipSpace(true);
  ASSIGN_OR_RETURN(const Grammar::Node body, ParseAlternatives(0));
  grammar_.Define(node, body);
  if (at_ < text_.size() && !IsAt("\n") && !IsAt("\r")) {
    return Error(at_, IsAt(")") ? "this parenthesis closes none" : "expected the end of the line");
  }
  SkipSpace(true);
  return absl::OkStatus();
}

// depth: of the parentheses around it, in which lines do not end a rule.
absl::StatusOr<Grammar::Node> GbnfParser::ParseAlternatives(int depth) {
  std::vector<Grammar::Node> options;
  do {
    if (!options.empty()) SkipSpace(true);
    ASSIGN_OR_RETURN(const Grammar::Node option, ParseSequence(depth));
    options.push_back(option);
  } while (Consume("|"));
  return options.size() == 1 ? options[0] : grammar_.Choice(std::move(options));
}

absl::StatusOr<Grammar::Node> GbnfParser::ParseSequence(int depth) {
  std::vector<Grammar::Node> parts;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<Grammar::Node> item, ParseItem(depth));
    if (!item) break;
    ASSIGN_OR_RETURN(const Grammar::Node part, ParseRepeats(*item));
    parts.push_back(part);
    SkipSpace(depth > 0);
    if (static_cast<int64_t>(grammar_.expressions().size()) > limits_.nodes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the grammar has more than ", limits_.nodes, " expressions"));
    }
  }
  return parts.size() == 1 ? parts[0] : grammar_.Sequence(std::move(parts));
}

// Nothing at the end of a sequence.
absl::StatusOr<std::optional<Grammar::Node>> GbnfParser::ParseItem(int depth) {
  if (at_ == text_.size()) return std::nullopt;
  const size_t begin = at_;
  switch (text_[at_]) {
    case '"':
      return ParseLiteral();
    case '[':
      return ParseClass();
    case '.':
      ++at_;
      return AddClass({{0, kLastCodePoint}});
    case '(': {
      if (depth >= limits_.depth) {
        return Error(begin, absl::StrCat("parentheses are more than ", limits_.depth, " deep"));
      }
      ++at_;
      SkipSpace(true);
      ASSIGN_OR_RETURN(const Grammar::Node group, ParseAlternatives(depth + 1));
      if (!Consume(")")) return Error(begin, "this parenthesis is not closed");
      return group;
    }
    case '*':
    case '+':
    case '?':
    case '{':
      return Error(begin, "there is nothing before it to repeat");
    case '<':
    case '!':
      return Error(begin, "references to tokens are not supported");
    default: {
      const std::string_view name = ParseName();
      if (!name.empty()) return FindRule(name, begin).node;
      return std::nullopt;
    }
  }
}

absl::StatusOr<Grammar::Node> GbnfParser::ParseLiteral() {
  const size_t begin = at_++;
  std::string literal;
  while (!Consume("\"")) {
    if (at_ == text_.size()) return Error(begin, "this text has no closing quote");
    ASSIGN_OR_RETURN(const char32_t code, ParseCharacter());
    AppendUtf8(code, literal);
  }
  return grammar_.Literal(literal);
}

absl::StatusOr<Grammar::Node> GbnfParser::ParseClass() {
  const size_t begin = at_++;
  const bool negated = Consume("^");
  std::vector<CodePointRange> ranges;
  while (!Consume("]")) {
    if (at_ == text_.size()) return Error(begin, "this class has no closing bracket");
    const size_t range_begin = at_;
    ASSIGN_OR_RETURN(const char32_t first, ParseCharacter());
    char32_t last = first;
    if (IsAt("-") && !IsAt("-]") && at_ + 1 < text_.size()) {
      ++at_;
      ASSIGN_OR_RETURN(last, ParseCharacter());
      if (last < first)
        return Error(range_begin, "the end of this range lies before its beginning");
    }
    ranges.push_back({first, last});
  }
  ranges = negated ? ComplementRanges(std::move(ranges)) : NormalRanges(std::move(ranges));
  if (ranges.empty()) return Error(begin, "no character is of this class");
  return AddClass(std::move(ranges));
}

// Equal classes are one terminal.
Grammar::Node GbnfParser::AddClass(std::vector<CodePointRange> ranges) {
  std::vector<char32_t> key;
  for (const CodePointRange& range : ranges) key.insert(key.end(), {range.first, range.last});
  const auto [at, is_new] = classes_.try_emplace(std::move(key), 0);
  if (is_new) at->second = grammar_.Terminal(CodePointDfa(std::move(ranges)));
  return at->second;
}

// A character of a literal or class, which is not at the end of the text.
absl::StatusOr<char32_t> GbnfParser::ParseCharacter() {
  const auto lead = static_cast<uint8_t>(text_[at_]);
  if (lead == '\\') return ParseEscape();
  ++at_;
  if (lead < 0x80) return char32_t{lead};
  const int n_tail = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
  char32_t code = lead & (0x3f >> n_tail);
  for (int i = 0; i < n_tail; ++i) code = code << 6 | (static_cast<uint8_t>(text_[at_++]) & 0x3f);
  return code;
}

absl::StatusOr<char32_t> GbnfParser::ParseEscape() {
  const size_t begin = at_++;
  if (at_ == text_.size()) return Error(begin, "nothing follows this backslash");
  int n_digits = 0;
  switch (const char c = text_[at_++]) {
    case 'n':
      return U'\n';
    case 'r':
      return U'\r';
    case 't':
      return U'\t';
    case '\\':
    case '"':
    case '[':
    case ']':
    case '-':
    case '^':
      return static_cast<char32_t>(c);
    case 'x':
      n_digits = 2;
      break;
    case 'u':
      n_digits = 4;
      break;
    case 'U':
      n_digits = 8;
      break;
    default:
      return Error(begin,
                   "unknown escape; expected one of \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ "
                   "\\xHH \\uHHHH \\UHHHHHHHH");
  }
  uint64_t code = 0;
  for (int i = 0; i < n_digits; ++i) {
    const std::optional<uint32_t> digit = HexDigit(at_ < text_.size() ? text_[at_++] : ' ');
    if (!digit) {
      return Error(begin, absl::StrCat("expected ", n_digits, " hexadecimal digits"));
    }
    code = 16 * code + *digit;
  }
  if (code > kLastCodePoint || (code >= 0xd800 && code <= 0xdfff)) {
    return Error(begin, "this is no code point that a text may have");
  }
  return static_cast<char32_t>(code);
}

absl::StatusOr<Grammar::Node> GbnfParser::ParseRepeats(Grammar::Node item) {
  for (int n_repeats = 0;; ++n_repeats) {
    SkipSpace(false);
    const size_t begin = at_;
    if (n_repeats > limits_.depth) return Error(begin, "too many repetitions of one item");
    if (Consume("*")) {
      item = grammar_.Repeat(item, 0, std::nullopt);
    } else if (Consume("+")) {
      item = grammar_.Repeat(item, 1, std::nullopt);
    } else if (Consume("?")) {
      item = grammar_.Repeat(item, 0, 1);
    } else if (Consume("{")) {
      SkipSpace(false);
      ASSIGN_OR_RETURN(const int64_t least, ParseCount());
      std::optional<int64_t> most = least;
      SkipSpace(false);
      if (Consume(",")) {
        SkipSpace(false);
        most = std::nullopt;
        if (!IsAt("}")) {
          ASSIGN_OR_RETURN(most, ParseCount());
        }
        SkipSpace(false);
      }
      if (!Consume("}")) return Error(at_, "expected } behind the bounds of a repetition");
      if (most && *most < least) return Error(begin, "the bounds of this repetition are reversed");
      item = grammar_.Repeat(item, least, most);
    } else {
      return item;
    }
  }
}

absl::StatusOr<int64_t> GbnfParser::ParseCount() {
  const size_t begin = at_;
  int64_t count = 0;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    count = 10 * count + (text_[at_] - '0');
    if (count > kMaxRepeat) {
      return Error(begin, absl::StrCat("expected a number up to ", kMaxRepeat));
    }
  }
  if (at_ == begin) return Error(begin, "expected a number");
  return count;
}

}  // namespace

absl::StatusOr<Grammar::Node> AddGbnf(std::string_view text, Grammar& grammar,
                                      const Limits& limits) {
  return GbnfParser(text, grammar, limits).Parse();
}

}  // namespace ovq::constraint
