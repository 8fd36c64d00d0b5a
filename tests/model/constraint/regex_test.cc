#include "model/constraint/regex.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/constraint/constraint.h"
#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint::test {
namespace {

absl::StatusOr<Language> Compile(std::string_view regex, Match match = Match::kWhole) {
  Budget budget{Limits()};
  return RegexLanguage(regex, match, Limits().depth, budget);
}

void ExpectRegex(std::string_view regex, const std::vector<std::string>& matching,
                 const std::vector<std::string>& others) {
  const absl::StatusOr<Language> language = Compile(regex);
  ASSERT_TRUE(language.ok()) << regex << ": " << language.status();
  for (const std::string& text : matching)
    EXPECT_TRUE(language->MatchesUtf8(text)) << regex << " " << text;
  for (const std::string& text : others)
    EXPECT_FALSE(language->MatchesUtf8(text)) << regex << " " << text;
}

TEST(Regex, MatchesWholeTexts) {
  ExpectRegex("", {""}, {"a"});
  ExpectRegex("a|bc", {"a", "bc"}, {"", "b", "abc"});
  ExpectRegex("(?:ab){2,3}?c+", {"ababc", "abababcc"}, {"abc", "ababababc", "abab"});
  ExpectRegex("(?<year>[0-9]{4})-(?P<m>\\d\\d)", {"2024-05"}, {"24-05", "2024-5"});
  ExpectRegex("[^a-c\\n]", {"d", "-", "é", "😀"}, {"a", "\n", "dd", ""});
  ExpectRegex("[]", {}, {"", "a"});
  ExpectRegex("[^]", {"\n"}, {""});
  ExpectRegex("[a\\-z][\\]^-]", {"a]", "-^", "z-"}, {"b]", "aa"});
  ExpectRegex(".", {"a", "é"}, {"\n", "\r", "\xe2\x80\xa8"});
  ExpectRegex("\\w\\W\\d\\D\\s\\S", {"_-7x\u00a0z"}, {"--7x z", "_-7x  "});
  ExpectRegex("\\x41\\u00e9\\u{1F600}\\uD83D\\uDE00\\cA\\0", {std::string("Aé😀😀\x01\0", 13)},
              {"A"});
  ExpectRegex("\\p{Lu}\\P{L}\\pN", {"É-٣"}, {"é-1", "Éa1"});
  ExpectRegex("a{2}{3}|a{,2}|{|}", {"a{,2}", "{", "}"}, {"aa"});
  ExpectRegex("\\/\\.\\*\\{", {"/.*{"}, {"/a*{"});
}

TEST(Regex, AnchorsHoldAtTheEnds) {
  ExpectRegex("^a$|^b$", {"a", "b"}, {"ab", ""});
  ExpectRegex("(^a|b)*c", {"ac", "bbc", "abc", "c"}, {"bac", "aac"});
  ExpectRegex("a^b|a$b|^$", {""}, {"ab", "a"});
  const absl::StatusOr<Language> searched = Compile("^a|b$|cc", Match::kSearch);
  ASSERT_TRUE(searched.ok());
  for (const char* text : {"a", "axx", "xxb", "xccx", "cc\n"})
    EXPECT_TRUE(searched->MatchesUtf8(text)) << text;
  for (const char* text : {"", "xa", "bx", "cxc"})
    EXPECT_FALSE(searched->MatchesUtf8(text)) << text;
}

TEST(Regex, RefusesWhatIsNotLinearByItsPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a(?=b)", "at character 3: look-ahead is not supported"},
      {"a(?<!b)", "at character 3: look-behind is not supported"},
      {"(a)\\1", "at character 4: back references and octal escapes are not supported"},
      {"\\bx", "at character 1: word boundaries are not supported"},
      {"(?i)a", "at character 2: flags, atomic groups and other groups"},
      {"a++", "at character 3: possessive quantifiers are not supported"},
      {"*a", "at character 1: there is nothing to repeat"},
      {"^*", "at character 2: an anchor can't be repeated"},
      {"(a", "at character 1: the group does not end"},
      {"a)", "at character 2: there is no group that this ) closes"},
      {"[a", "at character 1: the class of characters does not end"},
      {"[z-a]", "a range needs two characters in ascending order"},
      {"[[:alpha:]]", "at character 2: POSIX classes are not supported"},
      {"a{3,2}", "at character 2: the counts are in the wrong order"},
      {"a{1000000}", "at character 2: a count is above 100000"},
      {"\\p{Script=Greek}", "only general categories"},
      {"\\q", "at character 1: this escape is not supported"},
      {"\\", "at character 1: the escape does not end"},
      {"\\ud800", "at character 1: the escape is not the code of a character"},
      {"\xff", "at character 1: not valid UTF-8"},
  };
  for (const auto& [regex, message] : cases) {
    const absl::StatusOr<Language> language = Compile(regex);
    ASSERT_FALSE(language.ok()) << regex;
    EXPECT_TRUE(absl::IsInvalidArgument(language.status())) << regex;
    EXPECT_NE(std::string(language.status().message()).find(message), std::string::npos)
        << regex << ": " << language.status();
  }
}

TEST(Regex, HostileOnesEndAtALimit) {
  std::string deep;
  for (int i = 0; i < 1000; ++i) deep = absl::StrCat("(", deep, ")");
  for (const std::string& regex :
       {std::string("(a{1000}){1000}"), std::string("((((a{99}){99}){99}){99}){99}"),
        std::string("[ab]*a[ab]{40}"), std::string("(a{0,50000}){0,2}b"), deep}) {
    EXPECT_FALSE(Compile(regex).ok()) << regex.substr(0, 40);
  }
}

TEST(Regex, AnExpressionWithoutATextIsRefused) {
  Grammar grammar;
  EXPECT_EQ(AddRegex("a^", grammar, Limits()).status().message(),
            "no text matches the regular expression");
}

// Random expressions, and their texts found by trying everything.
struct NaiveRegex {
  char kind = 'c';  // c: a character; s: sequence; |: choice; *: repeat; ^ $
  std::string character = {};
  std::vector<NaiveRegex> parts = {};
  int least = 0, most = 0;

  using Then = std::function<bool(size_t)>;
  bool Matches(const std::vector<std::string>& text, size_t at, const Then& then) const {
    switch (kind) {
      case 'c':
        return at < text.size() && text[at] == character && then(at + 1);
      case '^':
        return at == 0 && then(at);
      case '$':
        return at == text.size() && then(at);
      case 's':
        return Sequence(text, 0, at, then);
      case '|':
        for (const NaiveRegex& part : parts) {
          if (part.Matches(text, at, then)) return true;
        }
        return false;
      default:
        return Repeat(text, 0, at, then);
    }
  }
  bool Sequence(const std::vector<std::string>& text, size_t part, size_t at,
                const Then& then) const {
    if (part == parts.size()) return then(at);
    return parts[part].Matches(
        text, at, [&, part](size_t next) { return Sequence(text, part + 1, next, then); });
  }
  bool Repeat(const std::vector<std::string>& text, int n, size_t at, const Then& then) const {
    if (n >= least && then(at)) return true;
    if (n == most) return false;
    return parts[0].Matches(text, at, [&, n](size_t next) {
      if (next == at && n >= least) return false;
      return Repeat(text, n + 1, next, then);
    });
  }
  std::string Text() const {
    std::string text;
    switch (kind) {
      case 'c':
        return character;
      case '^':
      case '$':
        return std::string(1, kind);
      case '*':
        text = absl::StrCat("(", parts[0].Text(), ")");
        if (least == 0 && most == 99) return text + "*";
        return absl::StrCat(text, "{", least, ",", most == 99 ? "" : std::to_string(most), "}");
      default:
        for (size_t i = 0; i < parts.size(); ++i) {
          if (i > 0 && kind == '|') text += "|";
          text += parts[i].Text();
        }
        return absl::StrCat("(?:", text, ")");
    }
  }
};

NaiveRegex RandomRegex(std::mt19937& random, int depth) {
  const auto upto = [&](int most) { return std::uniform_int_distribution<int>(0, most)(random); };
  const int kind = upto(depth > 0 ? 8 : 4);
  NaiveRegex regex;
  if (kind < 4) {
    regex.character = std::vector<std::string>{"a", "b", "é"}[upto(2)];
  } else if (kind == 4) {
    regex.kind = upto(1) == 0 ? '^' : '$';
  } else if (kind == 5) {
    regex.kind = '*';
    regex.least = upto(2);
    regex.most = upto(1) == 0 ? 99 : regex.least + upto(2);
    regex.parts.push_back(RandomRegex(random, depth - 1));
  } else {
    regex.kind = kind == 6 ? '|' : 's';
    for (int i = upto(2); i >= 0; --i) regex.parts.push_back(RandomRegex(random, depth - 1));
  }
  return regex;
}

TEST(Regex, RandomOnesAgreeWithTryingEverything) {
  std::vector<std::vector<std::string>> texts = {{}};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 4; ++i) {
    for (const char* character : {"a", "b", "é"}) {
      std::vector<std::string> longer = texts[i];
      longer.push_back(character);
      texts.push_back(longer);
    }
  }
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const NaiveRegex naive = RandomRegex(random, 3);
    const absl::StatusOr<Language> whole = Compile(naive.Text());
    const absl::StatusOr<Language> searched = Compile(naive.Text(), Match::kSearch);
    ASSERT_TRUE(whole.ok() && searched.ok()) << naive.Text() << whole.status();
    for (const auto& text : texts) {
      std::string joined;
      for (const std::string& character : text) joined += character;
      const bool matches = naive.Matches(text, 0, [&](size_t end) { return end == text.size(); });
      bool found = false;
      for (size_t begin = 0; begin <= text.size() && !found; ++begin) {
        found = naive.Matches(text, begin, [](size_t) { return true; });
      }
      ASSERT_EQ(whole->MatchesUtf8(joined), matches) << naive.Text() << " on " << joined;
      ASSERT_EQ(searched->MatchesUtf8(joined), found) << naive.Text() << " in " << joined;
    }
  }
}

TEST(Regular, OperationsAgreeWithMembership) {
  std::vector<std::string> texts = {""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < 5; ++i) {
    texts.push_back(texts[i] + "a");
    texts.push_back(texts[i] + "b");
  }
  std::mt19937 random(2);
  for (int i = 0; i < 100; ++i) {
    Budget budget{Limits()};
    const auto language = [&] {
      std::vector<std::string> listed;
      for (const std::string& text : texts) {
        if (random() % 3 == 0) listed.push_back(text);
      }
      return listed;
    };
    const std::vector<std::string> a = language();
    const std::vector<std::string> b = language();
    const int64_t least = static_cast<int64_t>(random() % 4);
    const int64_t most = random() % 2 == 0 ? -1 : least + static_cast<int64_t>(random() % 3);
    const Language of_a = ListedTexts(a, budget).value();
    const Language of_b = ListedTexts(b, budget).value();
    const Language both = Intersection(of_a, of_b, budget).value();
    const Language only_a = Difference(of_a, of_b, budget).value();
    const Language lengths = TextsOfLength(least, most, budget).value();
    const Language not_a = Difference(TextsOfLength(0, -1, budget).value(), of_a, budget).value();
    const Dfa bytes = ListedBytes(a, budget).value();
    const std::set<std::string> set_a(a.begin(), a.end());
    const std::set<std::string> set_b(b.begin(), b.end());
    for (const std::string& text : texts) {
      const auto size = static_cast<int64_t>(text.size());
      EXPECT_EQ(both.MatchesUtf8(text), set_a.contains(text) && set_b.contains(text));
      EXPECT_EQ(only_a.MatchesUtf8(text), set_a.contains(text) && !set_b.contains(text));
      EXPECT_EQ(not_a.MatchesUtf8(text), !set_a.contains(text));
      EXPECT_EQ(test::Matches(bytes, text), set_a.contains(text));
      EXPECT_EQ(lengths.MatchesUtf8(text), size >= least && (most < 0 || size <= most));
    }
    EXPECT_TRUE(not_a.MatchesUtf8("é"));
  }
}

TEST(Regular, StringsAreEncodedAsJsonWritesThem) {
  Budget budget{Limits()};
  const Language all = TextsOfLength(0, -1, budget).value();
  const Dfa strings = Encode(all, Encoding::kJsonString, budget).value();
  const Dfa plain = Encode(all, Encoding::kUtf8, budget).value();
  std::mt19937 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::u32string codes;
    std::string text;
    for (int k = static_cast<int>(random() % 3); k >= 0; --k) {
      const uint32_t most[] = {0x20, 0x80, 0x900, 0x11000, 0x110000};
      const char32_t code = random() % most[random() % 5];
      if (code >= 0xd800 && code < 0xe000) continue;
      AppendUtf8(code, text);
    }
    EXPECT_TRUE(test::Matches(strings, nlohmann::json(text).dump())) << text;
    EXPECT_TRUE(test::Matches(plain, text)) << text;
    std::string broken = text;
    for (char& byte : broken) byte = static_cast<char>(random());
    EXPECT_EQ(test::Matches(plain, broken), all.MatchesUtf8(broken));
  }
  for (const char* other : {"\"\\u0041\"", "\"\\/\"", "\"\\u000a\"", "\"\\u001F\"", "\"", "a",
                            "\"\n\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\xf4\x90\x80\x80\""}) {
    EXPECT_FALSE(test::Matches(strings, other)) << other;
  }
}

}  // namespace
}  // namespace ovq::constraint::test
