#include "model/constraint/matcher.h"

#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "base/text.h"
#include "tests/model/constraint/constraint_test_util.h"
#include "tests/model/constraint/naive_language.h"

namespace ovq::constraint {
namespace {

using test::ByteVocabulary;
using test::CompileGbnf;
using test::kTestCache;

// All texts over a, b and c up to a length.
std::vector<std::string> ShortTexts(size_t length) {
  std::vector<std::string> texts{""};
  for (size_t i = 0; i < texts.size() && texts[i].size() < length; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  return texts;
}

TEST(MatcherTest, AgreesWithTheNaiveRecogniser) {
  std::mt19937 random(1);
  const std::vector<std::string> texts = ShortTexts(6);
  int n_compiled = 0, n_texts = 0, n_left_recursive = 0, n_without_text = 0;
  for (int i = 0; i < 600; ++i) {
    const Grammar grammar = test::RandomGrammar(random).Make();
    const auto automaton = CompileGrammar(grammar, Limits());
    if (!automaton.ok()) {
      const std::string message(automaton.status().message());
      n_left_recursive += message.find("left recursive") != std::string::npos;
      if (message.find("no text") != std::string::npos) {
        ++n_without_text;
      }
      continue;
    }
    ++n_compiled;
    Matcher matcher(*automaton, ByteVocabulary(), kTestCache);
    test::NaiveLanguage naive(grammar);
    ASSERT_TRUE(naive.has_text()) << i;
    for (const std::string& text : texts) {
      const test::NaiveLanguage::Answer expected = naive.Ask(text);
      const std::optional<Place> place = matcher.Advance(matcher.Begin(), text);
      ASSERT_FALSE(matcher.exhausted());
      ASSERT_EQ(place.has_value(), expected.is_text || expected.is_beginning) << i << " " << text;
      if (!place) continue;
      ASSERT_EQ(place->may_end(), expected.is_text) << i << " " << text;
      ASSERT_EQ(place->may_go_on(), expected.is_beginning) << i << " " << text;
      ++n_texts;
    }
  }
  EXPECT_GT(n_compiled, 300);
  EXPECT_GT(n_texts, 10000);
  EXPECT_GT(n_left_recursive, 10);
  EXPECT_GT(n_without_text, 3);
}

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

// Every byte, texts of letters with quotes and characters of several bytes, pieces of them, some
// twice, tokens without a text, two ends.
std::shared_ptr<const Vocabulary> MixedVocabulary(std::mt19937& random) {
  const std::vector<std::string> pieces = {"a", "b",  "c", "\"", "\\", " ",        "1",
                                           "{", "\n", "é", "中", "😀",  "\xf0\x9f", "\x80"};
  std::vector<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace_back(1, static_cast<char>(byte));
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (uint32_t n = random() % 6; n > 0; --n) {
      text += pieces[random() % (random() % 3 == 0 ? pieces.size() : 3)];
    }
    texts.push_back(std::move(text));
  }
  std::vector<int32_t> ends = {300, static_cast<int32_t>(texts.size()) - 1};
  return std::make_shared<const Vocabulary>(texts, std::move(ends));
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

TEST(MatcherTest, MasksSayWhatAdvanceDoes) {
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

TEST(MatcherTest, MasksOfRandomClassesSayWhatAdvanceDoes) {
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
TEST(MatcherTest, LongTokensAreWalked) {
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
TEST(MatcherTest, RunsOverScatteredCharactersAreBounded) {
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
TEST(MatcherTest, LongRunsDoNotUseUpTheWorkOfAMask) {
  const std::shared_ptr<const Vocabulary> vocabulary =
      VocabularyWith({std::string(300, '1'), "ab", "abc", "ab\"", "aé", "\"[1", "a1", "中aa"});
  Matcher matcher(CompileGbnf(ParallelTexts(40, "[^\"0-9]{1,250}")), vocabulary, kTestCache);
  ExpectMaskIsRight(matcher, *vocabulary, matcher.Begin());
  ExpectMaskIsRight(matcher, *vocabulary, *matcher.Advance(matcher.Begin(), "\""));
  ExpectMaskIsRight(matcher, *vocabulary, *matcher.Advance(matcher.Begin(), "\"aéa"));
}

TEST(MatcherTest, PlacesWithManyStacksHaveRuns) {
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

TEST(MatcherTest, RandomGrammarsHaveNoDeadEnd) {
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
TEST(MatcherTest, MasksDoNotDependOnTheCache) {
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

TEST(MatcherTest, TheCacheIsBounded) {
  std::mt19937 random(5);
  const size_t cache_bytes = size_t{1} << 20;
  Matcher matcher(CompileGbnf(R"(root ::= ([a-c]{1,100000} "\"")*)"), MixedVocabulary(random),
                  cache_bytes);
  Place place = matcher.Begin();
  size_t most = 0;
  for (int i = 0; i < 20000; ++i) {
    if (i % 20 == 0) matcher.Mask(place);
    place = *matcher.Advance(place, "a");
    most = std::max(most, matcher.bytes());
  }
  EXPECT_GT(most, cache_bytes / 2);
  EXPECT_LT(most, 2 * cache_bytes);
  EXPECT_TRUE(matcher.Advance(place, "\"").has_value());
}

TEST(MatcherTest, MasksAreMemoised) {
  std::mt19937 random(6);
  Matcher matcher(CompileGbnf(R"(root ::= "\"" [^"]* "\"")"), MixedVocabulary(random), kTestCache);
  const Place begin = *matcher.Advance(matcher.Begin(), "\"");
  const auto mask = matcher.Mask(begin);
  // The state of a string leads back to itself.
  EXPECT_EQ(matcher.Mask(*matcher.Advance(begin, "abc 中")), mask);
  EXPECT_EQ(matcher.n_masks_computed(), 1);
}

TEST(MatcherTest, CountersAreExactAndCostNothing) {
  const std::shared_ptr<const Automaton> automaton =
      CompileGbnf(R"(root ::= ("ab" | "c"){1000,1000000} "." )");
  EXPECT_LT(automaton->bytes(), 2000U);
  Matcher matcher(automaton, ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  for (int i = 1; i <= 1000000; ++i) {
    place = *matcher.Advance(place, i % 2 == 0 ? "c" : "ab");
    if (i != 998 && i != 999 && i != 1000 && i != 999999 && i != 1000000) continue;
    EXPECT_EQ(matcher.Advance(place, ".").has_value(), i >= 1000) << i;
    EXPECT_EQ(matcher.Advance(place, "c").has_value(), i < 1000000) << i;
  }
  EXPECT_EQ(matcher.Mask(place)->only, '.');
}

TEST(MatcherTest, NestedCountersAreExact) {
  Matcher matcher(CompileGbnf(R"(root ::= (("a"{2,3} "b"){2} "c"){1,2})"), ByteVocabulary(),
                  kTestCache);
  for (const auto& [text, is_text] :
       std::vector<std::pair<std::string, bool>>{{"aabaabc", true},
                                                 {"aaabaabc", true},
                                                 {"aabaaabcaabaabc", true},
                                                 {"aabc", false},
                                                 {"aabaabaabc", false},
                                                 {"aabaab", false},
                                                 {"aaaabaabc", false},
                                                 {"aabaabcaabaabcaabaabc", false}}) {
    const std::optional<Place> place = matcher.Advance(matcher.Begin(), text);
    EXPECT_EQ(place && place->may_end(), is_text) << text;
  }
}

TEST(MatcherTest, NestingIsBoundedWithoutADeadEnd) {
  Matcher matcher(CompileGbnf("root ::= \"(\" (root \",\")* \")\" | \"[\" twin \"]\"\n"
                              "twin ::= \"<\" root \">\""),
                  ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  std::vector<uint8_t> bytes;  // always opens if it may
  std::mt19937 random(7);
  for (int i = 0; i < 4 * kMaxDepth; ++i) {
    const auto mask = matcher.Mask(place);
    ASSERT_GT(mask->n_allowed, 0);
    uint8_t byte = random() % 2 == 0 ? '[' : '(';
    if (!mask->Allows(byte)) byte = byte == '[' ? '(' : '[';
    if (!mask->Allows(byte)) byte = '<';
    if (!mask->Allows(byte)) break;
    bytes.push_back(byte);
    place = *matcher.Advance(place, byte);
  }
  EXPECT_GT(bytes.size(), static_cast<size_t>(kMaxDepth / 3));
  EXPECT_LT(bytes.size(), static_cast<size_t>(2 * kMaxDepth));
  // From the deepest place the text ends.
  int n_closed = 0;
  while (!place.may_end()) {
    const auto mask = matcher.Mask(place);
    int byte = 0;
    for (const int closing : {')', ']', '>', ','}) {
      if (mask->Allows(closing)) byte = closing;
      if (byte != 0 && byte != ',') break;
    }
    ASSERT_NE(byte, 0);
    place = *matcher.Advance(place, byte);
    ASSERT_LT(++n_closed, 4 * kMaxDepth);
  }
}

TEST(MatcherTest, RightRecursionNeedsNoDepth) {
  Matcher matcher(CompileGbnf(R"(root ::= "a" root | "b")"), ByteVocabulary(), kTestCache);
  Place place = matcher.Begin();
  for (int i = 0; i < 10 * kMaxDepth; ++i) place = *matcher.Advance(place, "a");
  EXPECT_TRUE(matcher.Advance(place, "b")->may_end());
  EXPECT_LT(matcher.bytes(), 10000U);
}

TEST(MatcherTest, AmbiguityIsBoundedAndSaysSo) {
  // Each a may be one item or a part of one, so that the counts spread.
  Matcher matcher(CompileGbnf(R"(root ::= ("a" | "aa" | "aaa"){0,100000} ".")"), ByteVocabulary(),
                  kTestCache);
  std::optional<Place> place = matcher.Begin();
  int n_bytes = 0;
  for (; n_bytes < 5000; ++n_bytes) {
    const std::optional<Place> next = matcher.Advance(*place, "a");
    if (!next) break;
    EXPECT_FALSE(matcher.exhausted());
    place = next;
  }
  EXPECT_TRUE(matcher.exhausted());
  EXPECT_GT(n_bytes, static_cast<int>(kMaxStacks) / 4);
  EXPECT_LT(n_bytes, 2 * static_cast<int>(kMaxStacks));
  // Another byte still fits; the mask has both, because its representative is less ambiguous.
  EXPECT_TRUE(matcher.Advance(*place, ".").has_value());
  EXPECT_FALSE(matcher.exhausted());
  EXPECT_TRUE(matcher.Mask(*place)->Allows('.'));
  EXPECT_FALSE(matcher.exhausted());
}

TEST(MatcherTest, NothingIsLeftWhereEveryTokenIsTooAmbiguous) {
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

TEST(MatcherTest, TokensWithoutATextLeadNowhere) {
  Matcher matcher(CompileGbnf(R"(root ::= "a"*)"), ByteVocabulary(), kTestCache);
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), 256).has_value());
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), 257).has_value());
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), -1).has_value());
  EXPECT_FALSE(matcher.exhausted());
}

TEST(VocabularyTest, ItsTrieHasEveryToken) {
  std::mt19937 random(8);
  const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
  std::vector<int> n_seen(vocabulary->size());
  std::vector<std::string> path(vocabulary->max_depth() + 1);
  const auto nodes = vocabulary->nodes();
  for (size_t i = 0; i < nodes.size(); ++i) {
    path[nodes[i].depth] = path[nodes[i].depth - 1] + static_cast<char>(nodes[i].byte);
    for (int32_t k = vocabulary->first_tokens()[i]; k < vocabulary->first_tokens()[i + 1]; ++k) {
      const int32_t token = vocabulary->order()[k];
      ++n_seen[token];
      EXPECT_EQ(vocabulary->Text(token), path[nodes[i].depth]);
    }
    ASSERT_GT(vocabulary->behind()[i], static_cast<int32_t>(i));
    int32_t reach = 0;  // of the descendants, which are all nodes up to its end
    const int32_t end = vocabulary->behind()[i];
    EXPECT_TRUE(end == std::ssize(nodes) || nodes[end].depth <= nodes[i].depth);
    for (int32_t other = static_cast<int32_t>(i) + 1; other < vocabulary->behind()[i]; ++other) {
      ASSERT_GT(nodes[other].depth, nodes[i].depth);
      reach = std::max(reach, nodes[other].depth - nodes[i].depth);
    }
    EXPECT_EQ(nodes[i].reach, reach);
  }
  for (int32_t id = 0; id < vocabulary->size(); ++id) {
    EXPECT_EQ(n_seen[id], vocabulary->Text(id).empty() ? 0 : 1) << id;
  }
}

// Whether the bytes are UTF-8, apart from a last character that may still be completed.
bool BeginsUtf8(const std::string& text) {
  for (const std::string end :
       {"", "\x80", "\xa0", "\x80\x80", "\xa0\x80", "\xa0\x80\x80", "\x80\x80\x80"}) {
    if (!FirstInvalidUtf8(text + end)) return true;
  }
  return false;
}

TEST(VocabularyTest, NodesKnowTheirCharacters) {
  std::mt19937 random(9);
  const std::shared_ptr<const Vocabulary> vocabulary = MixedVocabulary(random);
  std::vector<std::string> path(vocabulary->max_depth() + 1);
  const auto nodes = vocabulary->nodes();
  int n_pieces = 0, n_invalid = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::string& before = path[nodes[i].depth - 1];
    const std::string& text = path[nodes[i].depth] = before + static_cast<char>(nodes[i].byte);
    if (!BeginsUtf8(text)) {
      EXPECT_EQ(vocabulary->codes()[i], Vocabulary::kNoUtf8);
      ++n_invalid;
      if (!BeginsUtf8(before)) continue;
    } else if (nodes[i].byte < 0x80) {
      EXPECT_EQ(vocabulary->codes()[i], nodes[i].byte);
    } else {
      EXPECT_EQ(vocabulary->codes()[i], Vocabulary::kPiece);
      ++n_pieces;
    }
    size_t complete = before.size();
    while (FirstInvalidUtf8(before.substr(0, complete))) --complete;
    EXPECT_EQ(nodes[i].offset, before.size() - complete);
    int n_chars = nodes[i].offset > 0 || BeginsUtf8(before) ? 1 : 0;
    for (size_t k = 0; k < complete; ++k) n_chars += (before[k] & 0xc0) != 0x80 ? 1 : 0;
    EXPECT_EQ(vocabulary->chars()[i], n_chars) << i;
  }
  EXPECT_GT(n_pieces, 100);
  EXPECT_GT(n_invalid, 100);
}

// The errors of CompileGrammar name the rule.
TEST(CompileTest, RefusesWhatHasNoMeaning) {
  const auto error = [](std::string_view text, const Limits& limits = {}) {
    Grammar grammar;
    const absl::StatusOr<Grammar::Node> root = AddGbnf(text, grammar, limits);
    if (!root.ok()) return "parser: " + std::string(root.status().message());
    grammar.SetRoot(*root);
    return std::string(CompileGrammar(grammar, limits).status().message());
  };
  EXPECT_EQ(error("root ::= root \"a\""),
            "rule 'root' is left recursive: a text of it may begin with itself");
  EXPECT_EQ(error("root ::= \"a\" other\nother ::= \"b\"? third\nthird ::= \"c\" | other"),
            "rule 'other' is left recursive: a text of it may begin with itself");
  EXPECT_EQ(error("root ::= \"a\" (root?)* | \"b\""), "");
  EXPECT_EQ(error("root ::= (\"a\"* root?)* | \"b\""),
            "rule 'root' is left recursive: a text of it may begin with itself");
  EXPECT_EQ(error("root ::= \"a\" | endless\nendless ::= \"b\" endless"),
            "rule 'endless' has no text that ends");
  EXPECT_EQ(error("root ::= \"a\"\nunused ::= \"b\" unused"), "");
  Limits limits;
  limits.nodes = 3;
  EXPECT_EQ(error("root ::= (\"a\" | \"b\")+ | \"c\"", limits),
            "parser: the grammar has more than 3 expressions");
  limits = {};
  limits.dfa_states = 8;
  EXPECT_EQ(error("root ::= [a] [^b]", limits),
            "the constraint needs more than 8 states of automata");
  limits = {};
  limits.literal_bytes = 4;
  EXPECT_EQ(error("root ::= \"abc\" [a] \"de\"", limits),
            "the constraint's texts have more than 4 bytes");
  limits = {};
  limits.compile_steps = 5;
  EXPECT_EQ(error("root ::= [a-z] [^a] \"b\"", limits),
            "the constraint needs more than 5 steps to compile");
  // A text that needs more depth than there is.
  std::string deep = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) {
    deep += "r" + std::to_string(i) + " ::= \"(\" r" + std::to_string(i + 1) + " \")\"\n";
  }
  EXPECT_EQ(error(deep + "r2000 ::= \"a\""),
            "the shortest nesting of the constraint is 2000 deep, at most 1024 are allowed");
  EXPECT_EQ(error(deep + "r2000 ::= \"a\"\nr3000 ::= \"a\" | r1"),
            "the shortest nesting of the "
            "constraint is 2000 deep, at most 1024 are allowed");
  // Twice as many beginnings a rule.
  std::string wide = "root ::= r0\n";
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    wide += "r" + std::to_string(i) + " ::= " + next + " \"x\" | " + next + " \"y\"\n";
  }
  EXPECT_EQ(error(wide + "r20 ::= \"a\""),
            "the constraint is too ambiguous: a text has more than 1024 beginnings");
}

TEST(CompileTest, RulesThatAreNotDefinedAreNamed) {
  Grammar grammar;
  const Grammar::Node rule = grammar.Rule("missing");
  grammar.SetRoot(grammar.Sequence({grammar.Literal("a"), rule}));
  EXPECT_EQ(CompileGrammar(grammar, Limits()).status(),
            absl::InvalidArgumentError("rule 'missing' is not defined"));
}

TEST(CompileTest, BoundsThatContradictEachOtherAreRefused) {
  Grammar grammar;
  grammar.SetRoot(grammar.Repeat(grammar.Literal("a"), 3, 2));
  EXPECT_EQ(CompileGrammar(grammar, Limits()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(CompileTest, AChoiceOfTextsIsOneStack) {
  Source source{.kind = Source::Kind::kChoice};
  for (int i = 0; i < 5000; ++i) source.choices.push_back("text " + std::to_string(i));
  Grammar grammar;
  grammar.SetRoot(*AddSource(source, grammar, Limits()));
  const auto automaton = CompileGrammar(grammar, Limits());
  ASSERT_TRUE(automaton.ok()) << automaton.status();
  Matcher matcher(*automaton, ByteVocabulary(), kTestCache);
  EXPECT_TRUE(matcher.Advance(matcher.Begin(), "text 4999")->may_end());
  EXPECT_FALSE(matcher.Advance(matcher.Begin(), "text 5000").has_value());
  EXPECT_TRUE(matcher.Advance(matcher.Begin(), "text 499")->may_go_on());
  EXPECT_EQ(matcher.Mask(*matcher.Advance(matcher.Begin(), "te"))->only, 'x');
}

}  // namespace
}  // namespace ovq::constraint
