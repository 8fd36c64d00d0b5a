#include "model/constraint/regex.h"

#include <utf8proc.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/saturating.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/constraint/constraint.h"

namespace ovq::constraint {
namespace {

constexpr int64_t kMostRepeats = 100000;
constexpr char32_t kNoChar = 0xffffffff;

// A part of an expression.
struct RegexPart {
  enum class Kind : uint8_t { kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  Kind kind;
  CodeSet set = {};                   // kSet
  std::vector<RegexPart> parts = {};  // kRepeat: one
  int64_t least = 0;                  // kRepeat
  std::optional<int64_t> most = {};   // kRepeat
};

CodeSet DigitSet() { return {{'0', '9'}}; }
CodeSet WordSet() { return NormalRanges({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}); }
CodeSet SpaceSet() {
  return NormalRanges({{'\t', '\r'},
                       {' ', ' '},
                       {0xa0, 0xa0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200a},
                       {0x2028, 0x2029},
                       {0x202f, 0x202f},
                       {0x205f, 0x205f},
                       {0x3000, 0x3000},
                       {0xfeff, 0xfeff}});
}
CodeSet LineEndSet() { return NormalRanges({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}); }

// The code points of a general category by its short name, such as "L" or "Lu"; none for another
// name.
CodeSet CategorySet(std::string_view name) {
  // In the order of utf8proc's numbers. Surrogates and code points without a character are no part
  // of a text or have no name here.
  static constexpr std::string_view kNames[] = {
      "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
      "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};
  struct Run {
    CodePointRange range;
    utf8proc_category_t category;
  };
  static const std::vector<Run>& runs = *new std::vector<Run>([] {
    std::vector<Run> found;
    for (char32_t code = 0; code <= kLastCodePoint; ++code) {
      const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
      if (found.empty() || found.back().category != category) {
        found.push_back({{code, code}, category});
      } else {
        found.back().range.last = code;
      }
    }
    return found;
  }());
  std::vector<CodePointRange> ranges;
  for (const Run& run : runs) {
    const std::string_view category = kNames[run.category];
    if (category == name || (name.size() == 1 && category[0] == name[0] && name != "C")) {
      ranges.push_back(run.range);
    }
  }
  return NormalRanges(std::move(ranges));
}

class RegexParser {
 public:
  RegexParser(std::u32string text, int depth) : text_(std::move(text)), depth_(depth) {}

  absl::StatusOr<RegexPart> Parse() {
    ASSIGN_OR_RETURN(RegexPart part, ParseChoice(0));
    if (at_ < text_.size()) return Error("there is no group that this ) closes");
    return part;
  }

 private:
  absl::Status Error(std::string_view message) const {
    return absl::InvalidArgumentError(
        absl::StrCat("at character ", at_ + 1, ": ", AbslView(message)));
  }
  char32_t Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : kNoChar;
  }
  bool Skip(char32_t code) {
    if (Peek() != code) return false;
    ++at_;
    return true;
  }

  absl::StatusOr<RegexPart> ParseChoice(int depth) {
    if (depth > depth_) return Error(absl::StrCat("groups are nested more than ", depth_, " deep"));
    RegexPart choice{.kind = RegexPart::Kind::kChoice};
    do {
      ASSIGN_OR_RETURN(RegexPart sequence, ParseSequence(depth));
      choice.parts.push_back(std::move(sequence));
    } while (Skip('|'));
    if (choice.parts.size() == 1) return std::move(choice.parts[0]);
    return choice;
  }

  absl::StatusOr<RegexPart> ParseSequence(int depth) {
    RegexPart sequence{.kind = RegexPart::Kind::kSequence};
    while (at_ < text_.size() && Peek() != '|' && Peek() != ')') {
      ASSIGN_OR_RETURN(RegexPart part, ParseAtom(depth));
      RETURN_IF_ERROR(ParseQuantifier(part));
      sequence.parts.push_back(std::move(part));
    }
    return sequence;
  }

  absl::StatusOr<RegexPart> ParseAtom(int depth) {
    switch (Peek()) {
      case '(':
        return ParseGroup(depth);
      case '[':
        return ParseClass();
      case '.':
        ++at_;
        return RegexPart{.kind = RegexPart::Kind::kSet, .set = ComplementRanges(LineEndSet())};
      case '^':
        ++at_;
        return RegexPart{.kind = RegexPart::Kind::kBegin};
      case '$':
        ++at_;
        return RegexPart{.kind = RegexPart::Kind::kEnd};
      case '*':
      case '+':
      case '?':
        return Error("there is nothing to repeat");
      case '\\': {
        ASSIGN_OR_RETURN(CodeSet set, ParseEscape(/*in_class=*/false));
        return RegexPart{.kind = RegexPart::Kind::kSet, .set = std::move(set)};
      }
      default: {
        const char32_t code = text_[at_++];
        return RegexPart{.kind = RegexPart::Kind::kSet, .set = {{code, code}}};
      }
    }
  }

  absl::StatusOr<RegexPart> ParseGroup(int depth) {
    const size_t begin = at_++;
    if (Peek() == '?') {
      const char32_t kind = Peek(1);
      const bool is_behind = kind == '<' && (Peek(2) == '=' || Peek(2) == '!');
      if (kind == '=' || kind == '!') return Error("look-ahead is not supported");
      if (is_behind) return Error("look-behind is not supported");
      if (kind == ':') {
        at_ += 2;
      } else if (kind == '<' || (kind == 'P' && Peek(2) == '<')) {
        while (at_ < text_.size() && Peek() != '>') ++at_;
        if (!Skip('>')) return Error("the group's name does not end");
      } else {
        return Error("flags, atomic groups and other groups that begin with (? are not supported");
      }
    }
    ASSIGN_OR_RETURN(RegexPart part, ParseChoice(depth + 1));
    if (!Skip(')')) {
      at_ = begin;
      return Error("the group does not end");
    }
    // An anchor in a group may be repeated with it.
    if (part.kind != RegexPart::Kind::kSequence) {
      RegexPart group{.kind = RegexPart::Kind::kSequence};
      group.parts.push_back(std::move(part));
      return group;
    }
    return part;
  }

  // {n}, {n,} or {n,m} at the place; nothing, and the place as it was, for another text.
  bool ParseCounts(int64_t& least, std::optional<int64_t>& most) {
    const size_t begin = at_;
    const auto number = [&]() -> std::optional<int64_t> {
      std::optional<int64_t> value;
      for (; Peek() >= '0' && Peek() <= '9'; ++at_) {
        value = std::min<int64_t>(value.value_or(0) * 10 + (Peek() - '0'), kMostRepeats + 1);
      }
      return value;
    };
    ++at_;
    const std::optional<int64_t> first = number();
    bool is_counts = first.has_value();
    most = first;
    if (is_counts && Skip(',')) most = number();
    is_counts = is_counts && Skip('}');
    if (!is_counts) at_ = begin;
    least = first.value_or(0);
    return is_counts;
  }

  absl::Status ParseQuantifier(RegexPart& part) {
    const size_t begin = at_;
    int64_t least = 0;
    std::optional<int64_t> most;
    if (Skip('*')) {
    } else if (Skip('+')) {
      least = 1;
    } else if (Skip('?')) {
      most = 1;
    } else if (Peek() != '{' || !ParseCounts(least, most)) {
      return absl::OkStatus();
    }
    const size_t behind = std::exchange(at_, begin);
    if (part.kind == RegexPart::Kind::kBegin || part.kind == RegexPart::Kind::kEnd) {
      return Error("an anchor can't be repeated");
    }
    if (most && *most < least) return Error("the counts are in the wrong order");
    if (std::max(least, most.value_or(0)) > kMostRepeats) {
      return Error(absl::StrCat("a count is above ", kMostRepeats));
    }
    at_ = behind;
    Skip('?');  // lazy: the same language
    if (Peek() == '+') return Error("possessive quantifiers are not supported");
    RegexPart repeat{.kind = RegexPart::Kind::kRepeat, .least = least, .most = most};
    repeat.parts.push_back(std::move(part));
    part = std::move(repeat);
    return absl::OkStatus();
  }

  absl::StatusOr<RegexPart> ParseClass() {
    const size_t begin = at_++;
    const bool is_negated = Skip('^');
    std::vector<CodePointRange> ranges;
    while (Peek() != ']') {
      if (at_ >= text_.size()) {
        at_ = begin;
        return Error("the class of characters does not end");
      }
      if (Peek() == '[' && (Peek(1) == ':' || Peek(1) == '.' || Peek(1) == '=')) {
        return Error("POSIX classes are not supported");
      }
      ASSIGN_OR_RETURN(const CodeSet first, ParseClassItem());
      if (Peek() != '-' || Peek(1) == ']' || at_ + 1 >= text_.size()) {
        ranges.insert(ranges.end(), first.begin(), first.end());
        continue;
      }
      ++at_;
      ASSIGN_OR_RETURN(const CodeSet last, ParseClassItem());
      const auto is_char = [](const CodeSet& set) {
        return set.size() == 1 && set[0].first == set[0].last;
      };
      if (!is_char(first) || !is_char(last) || first[0].first > last[0].first) {
        return Error("a range needs two characters in ascending order");
      }
      ranges.push_back({first[0].first, last[0].first});
    }
    ++at_;
    CodeSet set = NormalRanges(std::move(ranges));
    if (is_negated) set = ComplementRanges(std::move(set));
    return RegexPart{.kind = RegexPart::Kind::kSet, .set = std::move(set)};
  }

  absl::StatusOr<CodeSet> ParseClassItem() {
    if (Peek() == '\\') return ParseEscape(/*in_class=*/true);
    if (at_ >= text_.size()) return Error("the class of characters does not end");
    const char32_t code = text_[at_++];
    return CodeSet{{code, code}};
  }

  absl::StatusOr<CodeSet> ParseEscape(bool in_class) {
    const size_t begin = at_++;
    const auto one = [](char32_t code) { return CodeSet{{code, code}}; };
    const auto fail = [&](std::string_view message) {
      at_ = begin;
      return Error(message);
    };
    if (at_ >= text_.size()) return fail("the escape does not end");
    const char32_t code = text_[at_++];
    switch (code) {
      case 'd':
        return DigitSet();
      case 'D':
        return ComplementRanges(DigitSet());
      case 'w':
        return WordSet();
      case 'W':
        return ComplementRanges(WordSet());
      case 's':
        return SpaceSet();
      case 'S':
        return ComplementRanges(SpaceSet());
      case 't':
        return one('\t');
      case 'n':
        return one('\n');
      case 'v':
        return one('\v');
      case 'f':
        return one('\f');
      case 'r':
        return one('\r');
      case 'b':
        if (in_class) return one('\b');
        return fail("word boundaries are not supported");
      case 'B':
        return fail("word boundaries are not supported");
      case 'k':
        return fail("back references are not supported");
      case 'p':
      case 'P':
        return ParseCategory(code == 'P', begin);
      case 'x':
      case 'u':
        return ParseCode(code, begin);
      case 'c': {
        const char32_t letter = Peek() | 0x20;
        if (letter < 'a' || letter > 'z') return fail("\\c needs a letter");
        ++at_;
        return one(letter & 0x1f);
      }
      default:
        break;
    }
    if (code == '0' && (Peek() < '0' || Peek() > '9')) return one(0);
    if (code >= '0' && code <= '9') {
      return fail("back references and octal escapes are not supported");
    }
    const bool is_letter = (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
    if (is_letter || code >= 0x80) return fail("this escape is not supported");
    return one(code);
  }

  // \p{NAME} and \P{NAME}, behind the letter; \pL as well.
  absl::StatusOr<CodeSet> ParseCategory(bool is_negated, size_t begin) {
    std::string name;
    if (Skip('{')) {
      for (; at_ < text_.size() && Peek() != '}' && Peek() < 0x80; ++at_) {
        name.push_back(static_cast<char>(Peek()));
      }
      if (!Skip('}')) return Error("\\p needs a name in braces");
    } else if (Peek() < 0x80) {
      name.push_back(static_cast<char>(text_[at_++]));
    }
    CodeSet set = CategorySet(name);
    if (set.empty()) {
      at_ = begin;
      return Error(absl::StrCat("\\p{", Quoted(name),
                                "}: only general categories by their short "
                                "names, such as L, Lu or Nd, are supported"));
    }
    return is_negated ? ComplementRanges(std::move(set)) : set;
  }

  std::optional<char32_t> Hex(size_t n_digits) {
    char32_t code = 0;
    for (size_t i = 0; i < n_digits; ++i) {
      const std::optional<uint32_t> digit = HexDigit(Peek(i));
      if (!digit) return std::nullopt;
      code = code << 4 | *digit;
    }
    at_ += n_digits;
    return code;
  }

  // \xHH, \x{H...}, \uHHHH, a pair of surrogates or \u{H...}, behind the letter.
  absl::StatusOr<CodeSet> ParseCode(char32_t letter, size_t begin) {
    std::optional<char32_t> code;
    if (Skip('{')) {
      size_t n_digits = 0;
      while (Peek(n_digits) != '}' && n_digits < 8) ++n_digits;
      if (n_digits > 0) code = Hex(n_digits);
      if (code && !Skip('}')) code.reset();
    } else {
      code = Hex(letter == 'x' ? 2 : 4);
      if (code && (*code & 0xfffffc00) == 0xd800 && Peek() == '\\' && Peek(1) == 'u') {
        at_ += 2;
        const std::optional<char32_t> low = Hex(4);
        const bool is_pair = low && (*low & 0xfffffc00) == 0xdc00;
        code = is_pair ? 0x10000 + ((*code & 0x3ff) << 10 | (*low & 0x3ff)) : 0xd800;
      }
    }
    const bool is_surrogate = code && *code >= 0xd800 && *code < 0xe000;
    if (!code || *code > kLastCodePoint || is_surrogate) {
      at_ = begin;
      return Error("the escape is not the code of a character");
    }
    return CodeSet{{*code, *code}};
  }

  const std::u32string text_;
  const int depth_;
  size_t at_ = 0;
};

// States that Build adds.
uint64_t NfaStates(const RegexPart& part) {
  uint64_t n = 2;
  for (const RegexPart& inner : part.parts) n = SaturatingAdd(n, NfaStates(inner));
  if (part.kind != RegexPart::Kind::kRepeat) return n;
  return SaturatingMultiply<uint64_t>(n, std::max<int64_t>(part.least, part.most.value_or(0)) + 1);
}

// Adds the part between `from` and the state that is returned.
int32_t Build(const RegexPart& part, int32_t from, Nfa& nfa) {
  switch (part.kind) {
    case RegexPart::Kind::kSequence:
      for (const RegexPart& inner : part.parts) from = Build(inner, from, nfa);
      return from;
    case RegexPart::Kind::kChoice: {
      const int32_t to = nfa.AddState();
      for (const RegexPart& inner : part.parts) {
        const int32_t begin = nfa.AddState();
        nfa.AddEdge(from, begin, Nfa::Kind::kEmpty);
        nfa.AddEdge(Build(inner, begin, nfa), to, Nfa::Kind::kEmpty);
      }
      return to;
    }
    case RegexPart::Kind::kRepeat: {
      for (int64_t i = 0; i < part.least; ++i) from = Build(part.parts[0], from, nfa);
      if (!part.most) {
        const int32_t loop = nfa.AddState();
        nfa.AddEdge(from, loop, Nfa::Kind::kEmpty);
        nfa.AddEdge(Build(part.parts[0], loop, nfa), loop, Nfa::Kind::kEmpty);
        return loop;
      }
      const int32_t to = nfa.AddState();
      for (int64_t i = part.least; i < *part.most; ++i) {
        nfa.AddEdge(from, to, Nfa::Kind::kEmpty);
        const int32_t begin = nfa.AddState();  // of its own: a loop inside must not lead to `to`
        nfa.AddEdge(from, begin, Nfa::Kind::kEmpty);
        from = Build(part.parts[0], begin, nfa);
      }
      nfa.AddEdge(from, to, Nfa::Kind::kEmpty);
      return to;
    }
    default: {
      const int32_t to = nfa.AddState();
      if (part.kind == RegexPart::Kind::kSet) {
        nfa.AddEdge(from, to, part.set);
      } else {
        nfa.AddEdge(from, to,
                    part.kind == RegexPart::Kind::kBegin ? Nfa::Kind::kBegin : Nfa::Kind::kEnd);
      }
      return to;
    }
  }
}

}  // namespace

absl::StatusOr<Language> RegexLanguage(std::string_view regex, Match match, int depth,
                                       Budget& budget) {
  std::u32string text;
  if (!DecodeUtf8(regex, text))
    return absl::InvalidArgumentError("at character 1: not valid UTF-8");
  ASSIGN_OR_RETURN(const RegexPart part, RegexParser(std::move(text), depth).Parse());
  const auto n_states = static_cast<int64_t>(std::min<uint64_t>(NfaStates(part), INT64_MAX));
  RETURN_IF_ERROR(budget.CheckStates(n_states / 4));
  RETURN_IF_ERROR(budget.Spend(n_states));
  Nfa nfa;
  const int32_t start = nfa.AddState();
  const int32_t begin = nfa.AddState();
  nfa.AddEdge(start, begin, Nfa::Kind::kEmpty);
  const int32_t end = Build(part, begin, nfa);
  const int32_t accept = nfa.AddState();
  nfa.AddEdge(end, accept, Nfa::Kind::kEmpty);
  if (match == Match::kSearch) {
    const CodeSet all = ComplementRanges({});
    nfa.AddEdge(start, start, all);
    nfa.AddEdge(accept, accept, all);
  }
  return Determinise(nfa, start, accept, budget);
}

absl::StatusOr<Grammar::Node> AddRegex(std::string_view regex, Grammar& grammar,
                                       const Limits& limits) {
  if (regex.size() > limits.source_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the regular expression has ", regex.size(),
                                                   " bytes, more than ", limits.source_bytes));
  }
  Budget budget(limits);
  ASSIGN_OR_RETURN(const Language language,
                   RegexLanguage(regex, Match::kWhole, limits.depth, budget));
  if (language.IsEmpty()) {
    return absl::InvalidArgumentError("no text matches the regular expression");
  }
  ASSIGN_OR_RETURN(Dfa dfa, Encode(language, Encoding::kUtf8, budget));
  return grammar.Terminal(std::move(dfa));
}

}  // namespace ovq::constraint
