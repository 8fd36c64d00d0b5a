// The masks of a matcher: they say what Advance does, whatever is cached, with bounded work.
#include <gtest/gtest.h>

#include "tests/model/constraint/constraint_test_util.h"

namespace ovq::constraint {
namespace {

using test::ByteVocabulary;
using test::CompileGbnf;
using test::kTestCache;
using test::MixedVocabulary;
using test::ShortTexts;

// Compares a mask with what it says, token by token.
void ExpectMaskIsRight(Matcher& matcher, const Vocabulary& vocabulary, const Place& place) {
  const std::shared_ptr<const TokenMask> mask = matcher.Mask(place);
  ASSERT_FALSE(matcher.exhausted());
  ASSERT_EQ(mask->bits.size(), static_cast<size_t>((vocabulary.size() + 31) / 32));
  int64_t n_allowed = 0;
  int32_t last = -1;
  for (int32_t id = 0; id < static_cast<int32_t>(32 * mask->bits.size()); ++id) {
    const bool is_end = std::count(vocabulary.ends().begin(), vocabulary.ends().end(), id) > 0;
    const bool expected = is_end ? place.may_end() : matcher.Advance(place, id).has_value();
    ASSERT_EQ(mask->Allows(id), expected) << id;
    if (!expected) continue;
    ++n_allowed;
    last = id;
  }
  EXPECT_EQ(mask->n_allowed, n_allowed);
  EXPECT_EQ(mask->only, n_allowed == 1 ? last : -1);
  // There is no dead end: each byte is a token here.
  EXPECT_TRUE(n_allowed > 0 || !place.may_go_on());
  EXPECT_TRUE(place.may_end() || place.may_go_on());
}

const std::vector<std::string>& GrammarsOfTests() {
  static const std::vector<std::string> grammars = {
      R"(root ::= "\"" [^"\\\x00-\x1f]* "\"")",
      R"(root ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\nu])* "\"" ws root2?
root2 ::= "1" | "{" root
ws ::= [ \n]*)",
      R"(root ::= "\"" [a-zé中]{3,7} "\"")",
      "root ::= .* \"abc\" | [^a]{2,}",
      R"(root ::= pair{2,5} "."
pair ::= ("a" | "ab" | "b" pair? )+ " "?)",
      R"(root ::= "{" (root ("," root)*)? "}" | "a"+ | "b" [0-9]{0,1000000} )",
      R"(root ::= ("a"? "b"?)* "c"?)",
      // Counted classes, near their bounds and far from them, and others between them.
      R"(root ::= "\"" ([^"\\\x00-\x1f] | "\\" ["\\/bfnrt]){3,12} "\"")",
      R"(root ::= [^"]{0,5} "\"" [a-b]{1,400} root?)",
      R"(root ::= .{2,6} | [ab]{30,33} "c")",
      R"(root ::= ([a-c] [a-c0-9]{0,6} " ")*)",
      R"(root ::= ([a-b]* | [b-c]{1,9}) "é" root?)",
      R"(root ::= ([a-cé-ü] | "中" | "😀"){4,20} "1")",
  };
  return grammars;
}

TEST(MasksTest, MasksSayWhatAdvanceDoes) {
  std::mt19937 random(2);
  for (const std::string& grammar : GrammarsOfTests()) {
    SCOPED_TRACE(grammar);
    const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
    Matcher matcher(CompileGbnf(grammar), vocabulary, kTestCache);
    Place place = matcher.Begin();
    for (int i = 0; i < 25; ++i) {
      ExpectMaskIsRight(matcher, *vocabulary, place);
      if (HasFatalFailure()) return;
      std::vector<int32_t> allowed;
      const std::shared_ptr<const TokenMask> mask = matcher.Mask(place);
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        if (mask->Allows(id) && !vocabulary->Text(id).empty()) {
          allowed.push_back(id);
        }
      }
      place = allowed.empty() ? matcher.Begin()
                              : *matcher.Advance(place, allowed[random() % allowed.size()]);
    }
  }
}

// Classes at random, some of them counted, one after another.
std::string RandomClasses(std::mt19937& random) {
  const std::vector<std::string> classes = {"[ab]", "[a-c]", "[^\"]",    ".",    "[^a\"\\\\]",
                                            "[b1]", "[ 1{]", "[a-cé中]", "[^😀]", "\"a\""};
  std::string grammar = "root ::= ";
  for (uint32_t n = 1 + random() % 3; n > 0; --n) {
    const uint32_t least = random() % 12, most = least + random() % (random() % 4 == 0 ? 300 : 9);
    const std::string bounds =
        "{" + std::to_string(least) + "," + std::to_string(std::max(most, 1U)) + "}";
    const std::string item = classes[random() % classes.size()];
    grammar += "(" + item + (random() % 3 == 0 ? " | \"\\\\\" [ab1]" : "") + ")";
    grammar += random() % 3 == 0 ? "*" : bounds;
    grammar += n > 1 && random() % 2 == 0 ? " \"\\\"\" " : " ";
  }
  return grammar;
}

TEST(MasksTest, MasksOfRandomClassesSayWhatAdvanceDoes) {
  std::mt19937 random(12);
  for (int i = 0; i < 60; ++i) {
    const std::string grammar = RandomClasses(random);
    SCOPED_TRACE(grammar);
    const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
    Matcher matcher(CompileGbnf(grammar), vocabulary, kTestCache);
    Place place = matcher.Begin();
    for (int step = 0; step < 8; ++step) {
      const std::shared_ptr<const TokenMask> mask = matcher.Mask(place);
      if (matcher.exhausted()) break;
      ExpectMaskIsRight(matcher, *vocabulary, place);
      if (HasFatalFailure()) return;
      if (!place.may_go_on()) break;
      auto token = static_cast<int32_t>(random() % vocabulary->size());
      while (!mask->Allows(token) || vocabulary->Text(token).empty()) {
        token = (token + 1) % static_cast<int32_t>(vocabulary->size());
      }
      place = *matcher.Advance(place, token);
    }
  }
}

// Longer than Vocabulary::kMaxChars, in a counted class and in one without a bound.
TEST(MasksTest, LongTokensAreWalked) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (int length = 240; length < 270; ++length) {
    for (const std::string end : {"", "\"", "b", "中"}) {
      texts.push_back(std::string(length, 'a') + end);
      std::string wide = "a";
      for (int i = 0; i < length; ++i) wide += "é";
      texts.push_back(wide + end);
    }
  }
  texts.emplace_back();
  const auto vocabulary = std::make_shared<const Vocabulary>(
      texts, std::vector<int32_t>{static_cast<int32_t>(texts.size()) - 1});
  for (const std::string grammar :
       {"root ::= [aé]* \"\\\"\"?", "root ::= [^\"]{0,255} \"\\\"\"", "root ::= [aé]{251} [b中]"}) {
    SCOPED_TRACE(grammar);
    Matcher matcher(CompileGbnf(grammar), vocabulary, kTestCache);
    ExpectMaskIsRight(matcher, *vocabulary, matcher.Begin());
    ExpectMaskIsRight(matcher, *vocabulary, *matcher.Advance(matcher.Begin(), "aé"));
  }
}

// Every byte, and some texts.
std::shared_ptr<const Vocabulary> VocabularyWith(const std::vector<std::string>& more) {
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  texts.insert(texts.end(), more.begin(), more.end());
  texts.emplace_back();
  const auto end = static_cast<int32_t>(texts.size()) - 1;
  return std::make_shared<const Vocabulary>(texts, std::vector<int32_t>{end});
}

// Half of the characters of 256 blocks of 64, each block with another half.
std::string ScatteredCharacters() {
  std::string text;
  for (uint32_t block = 0; block < 256; ++block) {
    for (uint32_t i = 0; i < 64; ++i) {
      const uint32_t flips = i / 2 < 8 ? block >> (i / 2) & 1 : 0;
      if (i % 2 == flips) AppendUtf8(static_cast<char32_t>(0x800 + 64 * block + i), text);
    }
  }
  return text;
}

// A class of characters may have a place for each edge in the middle of one, all with two stacks or
// many more that are equal, and a counter has these again at each count.
TEST(MasksTest, RunsOverScatteredCharactersAreBounded) {
  const std::string scattered = ScatteredCharacters();
  for (const int n_copies : {0, 500}) {
    std::string grammar = "root ::= x{0,128}\nx ::= a | b";
    for (int i = 0; i < n_copies; ++i) grammar += " | c" + std::to_string(i);
    grammar += "\na ::= [" + scattered + "]\nb ::= [^" + scattered + "]\n";
    for (int i = 0; i < n_copies; ++i) grammar += "c" + std::to_string(i) + " ::= a | a\n";
    ASSERT_LT(grammar.size(), size_t{256} << 10);
    const std::shared_ptr<const Vocabulary> vocabulary =
        VocabularyWith({std::string(128, 'a'), std::string(129, 'a'), "éa", "中"});
    Matcher matcher(CompileGbnf(grammar), vocabulary, kTestCache);
    const std::shared_ptr<const TokenMask> mask = matcher.Mask(matcher.Begin());
    const int64_t n_steps = matcher.n_steps();
    EXPECT_LT(n_steps, 60000) << n_copies;
    RecordProperty("steps" + std::to_string(n_copies), std::to_string(n_steps));
    RecordProperty("bytes" + std::to_string(n_copies), std::to_string(matcher.bytes()));
    EXPECT_LT(matcher.bytes(), size_t{24} << 20) << n_copies;
    if (!matcher.exhausted()) ExpectMaskIsRight(matcher, *vocabulary, matcher.Begin());
  }
}

// Texts in parallel that only their ends tell apart: each is a stack of its own.
std::string ParallelTexts(int n_texts, const std::string& text) {
  std::string grammar = "root ::= s0";
  for (int i = 1; i < n_texts; ++i) grammar += " | s" + std::to_string(i);
  for (int i = 0; i < n_texts; ++i) {
    const std::string n = std::to_string(i);
    grammar += "\ns" + n + " ::= \"\\\"\" " + text + " \"\\\"\" n" + n;
    grammar += "\nn" + n + " ::= \"[\" n" + n + " \"]\" | \"" + n + ";\"";
  }
  return grammar;
}

// The longest token is of another class, but the run of counted places could go on for so long.
TEST(MasksTest, LongRunsDoNotUseUpTheWorkOfAMask) {
  const std::shared_ptr<const Vocabulary> vocabulary =
      VocabularyWith({std::string(300, '1'), "ab", "abc", "ab\"", "aé", "\"[1", "a1", "中aa"});
  Matcher matcher(CompileGbnf(ParallelTexts(40, "[^\"0-9]{1,250}")), vocabulary, kTestCache);
  ExpectMaskIsRight(matcher, *vocabulary, matcher.Begin());
  ExpectMaskIsRight(matcher, *vocabulary, *matcher.Advance(matcher.Begin(), "\""));
  ExpectMaskIsRight(matcher, *vocabulary, *matcher.Advance(matcher.Begin(), "\"aéa"));
}

TEST(MasksTest, PlacesWithManyStacksHaveRuns) {
  std::mt19937 random(15);
  const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
  const auto n_nodes = static_cast<int64_t>(vocabulary->nodes().size());
  for (const int n_texts : {32, 33, 300}) {
    SCOPED_TRACE(n_texts);
    Matcher matcher(CompileGbnf(ParallelTexts(n_texts, "[^\"]*")), vocabulary, kTestCache);
    const Place place = *matcher.Advance(matcher.Begin(), "\"a");
    const int64_t n_before = matcher.n_steps();
    matcher.Mask(place);
    EXPECT_LT(matcher.n_steps() - n_before, n_nodes / 4);
    ExpectMaskIsRight(matcher, *vocabulary, place);
  }
}

// All texts of the letters a and b up to a length are tokens, and the marks of nesting.
std::shared_ptr<const Vocabulary> VocabularyOfTwoLetters(size_t length) {
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < length; ++i) {
    texts.push_back(texts[i] + "a");
    texts.push_back(texts[i] + "b");
  }
  texts.insert(texts.end(), {"(", "A", "B", "."});
  return std::make_shared<const Vocabulary>(texts, std::vector<int32_t>{0});
}

// Each letter enters two thousand choices of one rule: much work for a place of few stacks, and
// each text of letters is another place.
TEST(MasksTest, TheWorkOfStepsIsBounded) {
  std::string grammar = "root ::= \"a\" wide \"A\" | \"b\" wide \"B\" | \".\"\nwide ::= c0";
  for (int i = 1; i < 2000; ++i) grammar += " | c" + std::to_string(i);
  for (int i = 0; i < 2000; ++i) grammar += "\nc" + std::to_string(i) + " ::= root | root";
  const std::shared_ptr<const Vocabulary> vocabulary = VocabularyOfTwoLetters(14);
  Matcher matcher(CompileGbnf(grammar), vocabulary, kTestCache);
  for (int i = 0; i < 2; ++i) {  // the second time all steps are known
    EXPECT_EQ(matcher.Mask(matcher.Begin())->n_allowed, 0);
    EXPECT_TRUE(matcher.exhausted());
  }
  EXPECT_LT(matcher.n_steps(), 4000);
  // A vocabulary with few of these texts needs few steps.
  const std::shared_ptr<const Vocabulary> small = VocabularyOfTwoLetters(5);
  Matcher other(CompileGbnf(grammar), small, kTestCache);
  ExpectMaskIsRight(other, *small, other.Begin());
}

// Six texts in parallel, each within a thousand others and with a count: each place within that is
// represented by another one of thirty thousand frames, most of them the same.
TEST(MasksTest, PlacesOfManyFramesAreRepresented) {
  std::string grammar = "root ::= s0";
  for (int i = 1; i < 6; ++i) grammar += " | s" + std::to_string(i);
  for (int i = 0; i < 6; ++i) {
    const std::string n = std::to_string(i);
    grammar += "\ns" + n + " ::= \"(\" s" + n + " \"" + n + ";\" | inner{0,9}";
  }
  grammar += "\ninner ::= \"a\" inner \"A\" | \"b\" inner \"B\" | \".\"";
  const std::shared_ptr<const Vocabulary> vocabulary = VocabularyOfTwoLetters(9);
  Matcher matcher(CompileGbnf(grammar), vocabulary, kTestCache);
  ExpectMaskIsRight(matcher, *vocabulary, matcher.Begin());
  const std::optional<Place> deep = matcher.Advance(matcher.Begin(), std::string(1000, '('));
  ASSERT_TRUE(deep.has_value());
  const size_t bytes = matcher.bytes();
  ExpectMaskIsRight(matcher, *vocabulary, *deep);
  EXPECT_LT(matcher.bytes(), bytes + (size_t{16} << 20));
}

TEST(MasksTest, RandomGrammarsHaveNoDeadEnd) {
  std::mt19937 random(3);
  std::vector<std::string> texts = ShortTexts(4);
  texts.emplace_back();
  const auto vocabulary = std::make_shared<const Vocabulary>(
      texts, std::vector<int32_t>{static_cast<int32_t>(texts.size()) - 1});
  int n_places = 0;
  for (int i = 0; i < 400; ++i) {
    const auto automaton = CompileGrammar(test::RandomGrammar(random).Make(), Limits());
    if (!automaton.ok()) continue;
    Matcher matcher(*automaton, vocabulary, kTestCache);
    Place place = matcher.Begin();
    for (int step = 0; step < 8 && place.may_go_on(); ++step, ++n_places) {
      ExpectMaskIsRight(matcher, *vocabulary, place);
      if (HasFatalFailure()) return;
      int32_t token = static_cast<int32_t>(random() % texts.size());
      const std::shared_ptr<const TokenMask> mask = matcher.Mask(place);
      while (texts[token].empty() || !mask->Allows(token)) {
        token = (token + 1) % static_cast<int32_t>(texts.size());
      }
      place = *matcher.Advance(place, token);
    }
  }
  EXPECT_GT(n_places, 500);
}

// The bits of a mask, the same after the cache was dropped any number of times.
TEST(MasksTest, MasksDoNotDependOnTheCache) {
  for (const std::string& grammar : GrammarsOfTests()) {
    SCOPED_TRACE(grammar);
    std::mt19937 random(4);
    const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
    const std::shared_ptr<const Automaton> automaton = CompileGbnf(grammar);
    Matcher large(automaton, vocabulary, kTestCache);
    Matcher none(automaton, vocabulary, 0);  // drops all before each call
    Place in_large = large.Begin(), in_none = none.Begin();
    const Place first = in_none;
    for (int step = 0; step < 40; ++step) {
      const auto expected = large.Mask(in_large), mask = none.Mask(in_none);
      ASSERT_EQ(mask->bits, expected->bits);
      ASSERT_EQ(mask->n_allowed, expected->n_allowed);
      ASSERT_EQ(in_none.may_end(), in_large.may_end());
      ASSERT_EQ(in_none.may_go_on(), in_large.may_go_on());
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocabulary->size(); ++id) {
        if (mask->Allows(id) && !vocabulary->Text(id).empty()) allowed.push_back(id);
      }
      if (allowed.empty()) break;
      const int32_t token = allowed[random() % allowed.size()];
      in_large = *large.Advance(in_large, token);
      in_none = *none.Advance(in_none, token);
    }
    // A place that is held since the beginning, and one of another matcher.
    EXPECT_EQ(none.Mask(first)->bits, large.Mask(large.Begin())->bits);
    EXPECT_EQ(large.Mask(in_none)->bits, none.Mask(in_large)->bits);
    EXPECT_GT(none.n_masks_computed(), large.n_masks_computed() / 2);
  }
}

TEST(MasksTest, MasksAreMemoised) {
  std::mt19937 random(6);
  Matcher matcher(CompileGbnf(R"(root ::= "\"" [^"]* "\"")"), MixedVocabulary(random), kTestCache);
  const Place begin = *matcher.Advance(matcher.Begin(), "\"");
  const auto mask = matcher.Mask(begin);
  // The state of a string leads back to itself.
  EXPECT_EQ(matcher.Mask(*matcher.Advance(begin, "abc 中")), mask);
  EXPECT_EQ(matcher.n_masks_computed(), 1);
}

TEST(MasksTest, NothingIsLeftWhereEveryTokenIsTooAmbiguous) {
  // Each a doubles the stacks, and thirty have to come.
  const std::string thirty(30, 'a');
  Matcher matcher(CompileGbnf("root ::= \"a\" root \"x\" | \"a\" root \"y\" | \"" + thirty + "\""),
                  ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  int n_bytes = 0;
  for (; const std::optional<Place> next = matcher.Advance(place, "a"); ++n_bytes) place = *next;
  EXPECT_TRUE(matcher.exhausted());
  EXPECT_GT(n_bytes, 5);
  EXPECT_LT(n_bytes, 12);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(matcher.Mask(place)->n_allowed, 0);
    EXPECT_TRUE(matcher.exhausted());
    EXPECT_EQ(matcher.Mask(matcher.Begin())->only, 'a');
    EXPECT_FALSE(matcher.exhausted());
  }
}

}  // namespace
}  // namespace ovq::constraint
