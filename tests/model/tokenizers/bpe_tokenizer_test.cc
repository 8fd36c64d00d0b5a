#include "model/tokenizers/bpe_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/text.h"
#include "tests/folders.h"
#include "tests/model/model_test_util.h"
#include "tests/model/tokenizers/bpe_util.h"
#include "tests/test_util.h"

namespace ovq::model::test {
namespace {

using Json = nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kGolden = GoldenFolder() + "/tokenizers/";

std::unique_ptr<BpeTokenizer> LoadGolden(const char* name) {
  return *BpeTokenizer::Load(kGolden + name, kManyIds);
}

// Random bytes, then text of random characters.
TEST(BpeTokenizer, ManyRandomBytesComeBack) {
  std::mt19937 random(1);
  std::string bytes(kernels::test::IsSlow(kernels::Device::kCpu) ? 100'000 : 1'000'000, '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  std::string rest = bytes;
  std::string valid = ConsumeUtf8(rest);
  if (!rest.empty()) valid += kReplacementCharacter;
  for (const char* name : {"own-llama3-type", "own-qwen3.5-type"}) {
    const auto tokenizer = LoadGolden(name);
    const std::string text = Decode(*tokenizer, Encode(*tokenizer, bytes));
    EXPECT_TRUE(text == valid || std::string(name) != "own-llama3-type");
    // The other tokenizer normalizes, which is idempotent.
    EXPECT_TRUE(Decode(*tokenizer, Encode(*tokenizer, text)) == text);
  }
}

TEST(BpeTokenizer, RequestsInParallelGiveTheSameIds) {
  const auto tokenizer = LoadGolden("own-llama3-type");
  const Json cases = ReadJsonFile(kGolden + "own-llama3-type/cases.json");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& mine : wrong) {
    threads.emplace_back([&tokenizer, &cases, &mine] {
      for (const Json& c : cases) {
        if (c.contains("bytes_hex") || c.contains("add_special_tokens")) continue;
        const auto ids = tokenizer->Encode(c["text"].get<std::string>());
        mine += !ids.ok() || *ids != c["ids"].get<std::vector<int32_t>>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// The white space that the first token includes has another token in it: the text goes on behind
// that one, as in the library.
TEST(BpeTokenizer, ATokenInTheWhiteSpaceOfAnother) {
  const auto tokenizer = MakeTokenizer(
      TokenizerJson({"x", " "}, {},
                    {{"added_tokens",
                      {{{"id", 2}, {"content", "<a>"}, {"rstrip", true}, {"special", true}},
                       {{"id", 3}, {"content", "\n"}, {"special", true}},
                       {{"id", 4}, {"content", "<b>"}, {"lstrip", true}, {"special", true}}}}}));
  EXPECT_THAT(Encode(*tokenizer, "<a> \n x"), ElementsAre(2, 3, 1, 0));
  EXPECT_THAT(Encode(*tokenizer, "<a> x"), ElementsAre(2, 0));
  EXPECT_THAT(Encode(*tokenizer, "x <b>x"), ElementsAre(0, 4, 0));
  EXPECT_THAT(Encode(*tokenizer, "<a>  <b> x"), ElementsAre(2, 4, 1, 0));
}

// A text that nothing splits is one word. Parts that no merge can join are merged separately; the
// ids are those of merging the whole.
TEST(BpeTokenizer, LongWordsAreCutWhereNoMergeReaches) {
  const std::vector<std::string> vocab = {"<unk>", "_", "a", "b", "c", "_a", "ab", "_ab", "abc"};
  const std::vector<std::string> merges = {"a b", "_ ab", "_ a", "ab c"};
  Merges expected;
  expected.Add(2, 3, 6);
  expected.Add(1, 6, 7);
  expected.Add(1, 2, 5);
  expected.Add(6, 4, 8);
  for (const bool fuse : {false, true}) {
    Json file = TokenizerJson(vocab, merges);
    file["model"]["unk_token"] = "<unk>";
    file["model"]["fuse_unk"] = fuse;
    const auto tokenizer = MakeTokenizer(file);
    std::mt19937 random(1);
    for (int trial = 0; trial < 200; ++trial) {
      std::string text;
      std::vector<int32_t> ids;
      for (int i = 0; i < 300; ++i) {
        const size_t id = random() % 5;
        text += id == 0 ? "?" : vocab[id];
        if (id != 0 || !fuse || ids.empty() || ids.back() != 0) {
          ids.push_back(static_cast<int32_t>(id));
        }
      }
      expected.Apply(ids);
      ASSERT_EQ(Encode(*tokenizer, text), ids) << text;
    }
  }
}

// A merge of an unknown character joins symbols that its text does not show.
TEST(BpeTokenizer, LongWordsStayWholeWhereUnknownCharactersMerge) {
  Json file = TokenizerJson({"<unk>", "a", "<unk>a"}, {"<unk> a"});
  file["model"]["unk_token"] = "<unk>";
  const auto tokenizer = MakeTokenizer(file);
  std::string text;
  for (int i = 0; i < 50; ++i) text += "a?";
  std::vector<int32_t> ids(50, 2);
  ids.insert(ids.begin(), 1);
  ids.back() = 0;
  EXPECT_EQ(Encode(*tokenizer, text), ids);
}

TEST(BpeTokenizer, IgnoreMergesTakesWholeWordsOfTheAlphabet) {
  std::vector<std::string> vocab = ByteChars();
  vocab.push_back("\xc4\xa0hi");
  Json file =
      TokenizerJson(vocab, {},
                    {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                     {"decoder", {{"type", "ByteLevel"}}}});
  EXPECT_THAT(Encode(*MakeTokenizer(file), " hi"), ElementsAre(' ', 'h', 'i'));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(Encode(*MakeTokenizer(file), " hi hi"), ElementsAre(256, 256));
}

TEST(BpeTokenizer, NotesWhatHasNoEffect) {
  Json file = TokenizerJson({"a"}, {}, {{"decoder", {{"type", "ByteLevel"}}}});
  file["truncation"] = {{"max_length", 5}};
  EXPECT_THAT(MakeTokenizer(file)->notes(),
              ElementsAre(HasSubstr("truncation"), HasSubstr("no token for some bytes")));
  EXPECT_THAT(LoadGolden("own-llama3-type")->notes(), IsEmpty());
}

TEST(BpeTokenizer, IdsMustFitTheModel) {
  const Json file = TokenizerJson({"a", "b"}, {});
  EXPECT_THAT(Message(ParseTokenizer(file.dump(), 1).status()),
              HasSubstr("tokenizer.json: model.vocab: 'b': expected an integer id below the "
                        "model's vocab_size 1, got 1"));
  const Json added =
      TokenizerJson({"a"}, {}, {{"added_tokens", {{{"id", 7}, {"content", "<x>"}}}}});
  EXPECT_THAT(Message(ParseTokenizer(added.dump(), 7).status()),
              HasSubstr("added_tokens[0].id: expected an integer in [0, 6], got 7"));
  const Json pictures = TokenizerJson(
      {"a"}, {}, {{"added_tokens", {{{"id", 7}, {"content", "<x>"}, {"special", true}}}}});
  const auto without = ParseTokenizer(pictures.dump(), 7);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->size(), 1);
  EXPECT_THAT((*without)->notes(), ElementsAre(HasSubstr("added_tokens[0]: '<x>' has the id 7")));
}

TEST(BpeTokenizer, AddedTokensMustNotContradictEachOther) {
  const auto error = [](const Json& first, const Json& second) {
    return Message(
        ParseTokenizer(TokenizerJson({"a"}, {}, {{"added_tokens", {first, second}}}).dump())
            .status());
  };
  const Json token = {{"id", 1}, {"content", "<x>"}};
  EXPECT_EQ(error(token, token), "");
  EXPECT_THAT(error(token, {{"id", 1}, {"content", "<y>"}}),
              HasSubstr("added_tokens[1]: '<y>' has the id 1, but another added token has '<x>'"));
  EXPECT_THAT(error(token, {{"id", 2}, {"content", "<x>"}}),
              HasSubstr("added_tokens[1]: '<x>' has the id 2, but another added token has '<x>'"));
  EXPECT_THAT(error(token, {{"id", 0}, {"content", "<y>"}}),
              HasSubstr("added_tokens[1]: '<y>' has the id 0, but model.vocab has 'a'"));
}

// Every letter of such a text is one of the byte alphabet, too. "Ġx" is a word of the vocabulary as
// well, and "é" the byte e9 of other characters.
TEST(BpeTokenizer, AddedTokensDecodeToTheirText) {
  std::vector<std::string> vocab = ByteChars();
  vocab.insert(vocab.end(), {"Ġx", "naïve"});
  const auto added = [](int id, const char* content, bool special) {
    return Json{{"id", id}, {"content", content}, {"special", special}};
  };
  const auto tokenizer = MakeTokenizer(
      TokenizerJson(vocab, {"Ġ x"},
                    {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"added_tokens",
                      {added(300, "čau", false), added(301, "é!", true), added(257, "naïve", false),
                       added(256, "Ġx", false), added(0xe9, "é", false)}}}));
  const std::string text = "a čau é! naïve x 中";
  const std::vector<int32_t> ids = Encode(*tokenizer, text);
  for (const int32_t id : {300, 301, 257, 256, 0xe4}) EXPECT_THAT(ids, Contains(id));
  EXPECT_EQ(Decode(*tokenizer, ids), text);
  EXPECT_EQ(Stream(*tokenizer, {300, 301}, false)[0], "čau");
  EXPECT_EQ(Decode(*tokenizer, {0xe9, 0x80, 0x80}), "\xe9\x80\x80");
  EXPECT_EQ(tokenizer->special_tokens().at(301), "é!");
}

// The library warns of such a file, and encodes with the vocabulary's id.
TEST(BpeTokenizer, AnAddedTokenHasTheIdOfTheVocabulary) {
  const auto tokenizer = MakeTokenizer(TokenizerJson(
      {"a", "b", "ab"}, {},
      {{"added_tokens", {{{"id", 7}, {"content", "ab"}}, {{"id", 8}, {"content", "<x>"}}}}}));
  EXPECT_THAT(Encode(*tokenizer, "aabb<x>"), ElementsAre(0, 2, 1, 8));
  EXPECT_EQ(Decode(*tokenizer, {2}), "ab");
  EXPECT_EQ(tokenizer->Token(7), nullptr);
  EXPECT_THAT(tokenizer->notes(),
              ElementsAre(HasSubstr("added_tokens[0]: 'ab' has the id 7, but in model.vocab 2")));
}

// A pattern that takes too long on a text is an error of this text.
TEST(BpeTokenizer, APatternThatGivesUpIsAnError) {
  const Json file = TokenizerJson({"a", "b"}, {},
                                  {{"pre_tokenizer",
                                    {{"type", "Split"},
                                     {"pattern", {{"Regex", "(?:a|aa|aaa)+$"}}},
                                     {"behavior", "Isolated"}}}});
  const auto tokenizer = MakeTokenizer(file);
  EXPECT_TRUE(tokenizer->Encode("aaa").ok());
  EXPECT_EQ(tokenizer->Encode(std::string(60, 'a') + "b").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ovq::model::test
