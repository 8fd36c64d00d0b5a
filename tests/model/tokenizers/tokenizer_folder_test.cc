#include "model/tokenizers/tokenizer_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/model/model_test_util.h"
#include "tests/model/tokenizers/bpe_util.h"

namespace ovq::model::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// GPT-2's files with the byte alphabet, "he", "llo" and "<|endoftext|>".
class VocabAndMerges : public ::testing::Test {
 protected:
  void SetUp() override {
    Json vocab = Json::object();
    const std::vector<std::string> bytes = ByteChars();
    for (int byte = 0; byte < 256; ++byte) vocab[bytes[byte]] = byte;
    for (const char* token : {"he", "ll", "llo", "<|endoftext|>"}) vocab[token] = vocab.size();
    folder_.Write("vocab.json", vocab.dump());
    folder_.Write("merges.txt", "#version: 0.2\r\nh e\r\nl l\nll o\n");
  }
  std::string ErrorText() const {
    return Message(BpeTokenizer::Load(folder_.path(), kManyIds).status());
  }
  TempFolder folder_;
};

TEST_F(VocabAndMerges, AreGpt2sTokenizer) {
  EXPECT_TRUE(TokenizerFolder::IsIn(folder_.path()));
  const auto tokenizer = BpeTokenizer::Load(folder_.path(), kManyIds);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto ids = Encode(**tokenizer, "hello hello<|endoftext|>");
  EXPECT_THAT(ids, ElementsAre(256, 258, ' ', 256, 258, 259));
  EXPECT_EQ(Decode(**tokenizer, ids), "hello hello<|endoftext|>");
  EXPECT_EQ(Decode(**tokenizer, ids, /*skip_special=*/true), "hello hello");
}

TEST_F(VocabAndMerges, TokensBesideThem) {
  folder_.Write("added_tokens.json", R"({"<x>": 300})");
  folder_.Write("tokenizer_config.json",
                R"({"added_tokens_decoder": {"301": {"content": "<y>", "special": true}},
                    "add_prefix_space": true, "eos_token": {"content": "llo"}})");
  const auto tokenizer = BpeTokenizer::Load(folder_.path(), kManyIds);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(Encode(**tokenizer, "he<x><y>llo"), ElementsAre(' ', 256, 300, 301, 258));
  EXPECT_FALSE((*tokenizer)->IsSpecial(300));
  EXPECT_TRUE((*tokenizer)->IsSpecial(301));
  EXPECT_TRUE((*tokenizer)->IsSpecial(258));
}

// Older folders list them in special_tokens_map.json and added_tokens.json alone.
TEST_F(VocabAndMerges, SpecialTokensByRoleAndByList) {
  folder_.Write("added_tokens.json", R"({"<x>": 300, "<end>": 301, "<turn>": 302})");
  folder_.Write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  folder_.Write("special_tokens_map.json",
                R"({"eos_token": "he", "bos_token": "ll",
                    "additional_special_tokens": [{"content": "<turn>"}, "llo"]})");
  const auto tokenizer = BpeTokenizer::Load(folder_.path(), kManyIds);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const int32_t id : {257, 258, 301, 302}) EXPECT_TRUE((*tokenizer)->IsSpecial(id)) << id;
  for (const int32_t id : {256, 300}) EXPECT_FALSE((*tokenizer)->IsSpecial(id)) << id;
  const std::vector<int32_t> ids = Encode(**tokenizer, "<turn><x>he<end>");
  EXPECT_THAT(ids, ElementsAre(302, 300, 256, 301));
  EXPECT_EQ(Decode(**tokenizer, ids, /*skip_special=*/true), "<x>he");
}

// Qwen's tokenizers compose characters, their digits are words of their own, and in Qwen3.5's words
// have marks.
TEST_F(VocabAndMerges, AreQwensTokenizerByItsClass) {
  Json vocab = Json::object();
  const std::vector<std::string> bytes = ByteChars();
  for (int byte = 0; byte < 256; ++byte) vocab[bytes[byte]] = byte;
  vocab["11"] = 256;
  vocab["x\u00cc"] = 257;
  folder_.Write("vocab.json", vocab.dump());
  folder_.Write("merges.txt", "1 1\nx \u00cc\n");
  const auto ids = [this](const std::string& config) {
    folder_.Write("tokenizer_config.json", config);
    const auto tokenizer = BpeTokenizer::Load(folder_.path(), kManyIds);
    Check(tokenizer.ok(), Message(tokenizer.status()).c_str());
    return Encode(**tokenizer, "11e\u0301x\u0302");
  };
  for (const char* config : {"{}", R"({"tokenizer_class": "GPT2Tokenizer"})"}) {
    EXPECT_THAT(ids(config), ElementsAre(256, 'e', 0xcc, 0x81, 'x', 0xcc, 0x82)) << config;
  }
  for (const char* name : {"Qwen2Tokenizer", "Qwen2TokenizerFast"}) {
    EXPECT_THAT(ids(absl::StrCat(R"({"tokenizer_class": ")", name, "\"}")),
                ElementsAre('1', '1', 0xc3, 0xa9, 'x', 0xcc, 0x82));
  }
  EXPECT_THAT(ids(R"({"tokenizer_class": "Qwen3_5Tokenizer"})"),
              ElementsAre('1', '1', 0xc3, 0xa9, 257, 0x82));
}

TEST_F(VocabAndMerges, ATokenBesideThemThatIsNone) {
  for (const char* token : {"7", "[]", R"("x")", "{}"}) {
    folder_.Write("tokenizer_config.json",
                  absl::StrCat(R"({"added_tokens_decoder": {"301": )", token, "}}"));
    EXPECT_THAT(ErrorText(), HasSubstr("added_tokens[0]")) << token;
  }
}

TEST_F(VocabAndMerges, ErrorsNameTheFile) {
  folder_.Write("merges.txt", "#version: 0.2\nh e\nl l l\n");
  EXPECT_THAT(ErrorText(), HasSubstr("merges.txt: line 3: expected two tokens"));
  folder_.Write("merges.txt", "h e\n\xff\n");
  EXPECT_THAT(ErrorText(), HasSubstr("merges.txt: not UTF-8 at byte 4"));
  folder_.Write("merges.txt", "h x\n");
  EXPECT_THAT(ErrorText(), HasSubstr("vocab.json: model.merges[0]: 'h' and 'x' give 'hx'"));
  folder_.Write("vocab.json", R"({"a": "b"})");
  EXPECT_THAT(ErrorText(), HasSubstr("vocab.json: 'a': expected an integer id below"));
  folder_.Write("vocab.json", "[]");
  EXPECT_THAT(ErrorText(), HasSubstr("vocab.json: the file: expected an object"));
}

class WithConfig : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<BpeTokenizer>> Load(const Json& config, bool bos_by_template) {
    Json file = TokenizerJson({"a", "<s>", "</s>"}, {});
    if (bos_by_template) {
      file["post_processor"] = {
          {"type", "TemplateProcessing"},
          {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
          {"special_tokens", {{"<s>", {{"ids", {1}}}}}}};
    }
    folder_.Write("tokenizer.json", file.dump());
    folder_.Write("tokenizer_config.json", config.dump());
    return BpeTokenizer::Load(folder_.path(), kManyIds);
  }
  std::vector<int32_t> Before(const Json& config, bool bos_by_template) {
    const auto tokenizer = Load(config, bos_by_template);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->ends().before;
  }
  TempFolder folder_;
};

TEST_F(WithConfig, BosStandsOnceOrNotAtAll) {
  const Json wanted = {{"add_bos_token", true}, {"bos_token", "<s>"}};
  const Json unwanted = {{"add_bos_token", false}, {"bos_token", "<s>"}};
  EXPECT_THAT(Before(wanted, false), ElementsAre(1));
  EXPECT_THAT(Before(wanted, true), ElementsAre(1));
  EXPECT_THAT(Before(unwanted, true), ElementsAre());
  EXPECT_THAT(Before({{"bos_token", "<s>"}}, true), ElementsAre(1));
  EXPECT_THAT(Before({{"add_bos_token", false}, {"bos_token", nullptr}}, true), ElementsAre(1));
}

TEST_F(WithConfig, BosMayBeNamedBesideIt) {
  folder_.Write("special_tokens_map.json", R"({"bos_token": {"content": "<s>"}})");
  EXPECT_THAT(Before({{"add_bos_token", true}}, false), ElementsAre(1));
  EXPECT_THAT(Before({{"add_bos_token", false}}, true), ElementsAre());
  EXPECT_THAT(Before({{"add_bos_token", true}, {"bos_token", "</s>"}}, false), ElementsAre(2));
}

TEST_F(WithConfig, Eos) {
  const auto tokenizer =
      Load({{"add_eos_token", true}, {"eos_token", {{"content", "</s>"}}}}, true);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT((*tokenizer)->ends().before, ElementsAre(1));
  EXPECT_THAT((*tokenizer)->ends().after, ElementsAre(2));
}

TEST_F(WithConfig, Errors) {
  EXPECT_THAT(Message(Load({{"add_bos_token", true}, {"bos_token", "<b>"}}, false).status()),
              HasSubstr("tokenizer.json: has no token '<b>', which tokenizer_config.json names"));
  EXPECT_THAT(Message(Load({{"add_bos_token", true}}, false).status()),
              HasSubstr("tokenizer_config.json has add_bos_token, but neither it nor "
                        "special_tokens_map.json names the bos_token"));
  EXPECT_THAT(Message(Load({{"add_bos_token", "yes"}}, false).status()),
              HasSubstr("tokenizer_config.json: add_bos_token: expected true or false, got 'yes'"));
}

TEST(TokenizerJson, FilesThatAreNone) {
  const auto error = [](std::string_view text) { return Message(ParseTokenizer(text).status()); };
  EXPECT_THAT(error("[]"), HasSubstr("tokenizer.json: expected an object, got an array"));
  EXPECT_THAT(error("{} x"), HasSubstr("tokenizer.json: not valid JSON at byte 4"));
  EXPECT_THAT(error(R"({"model": {"type": "BPE", "vocab": {}, "merges": {}}})"),
              HasSubstr("model.merges: expected a list, got an object"));
  EXPECT_THAT(error(R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})"),
              HasSubstr("model.vocab: the token 'a' is given twice"));
  EXPECT_THAT(error(R"({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"),
              HasSubstr("model.vocab: 'a': expected an integer id"));
  EXPECT_THAT(error(R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a", null]}})"),
              HasSubstr("model.merges[1]: expected two tokens, got null"));
  EXPECT_THAT(error(R"({"model": {"vocab": {"a": 0}}})"),
              HasSubstr("model.type: expected a string, but it is missing"));
  EXPECT_THAT(error(R"({"model": {"type": "Unigram", "vocab": [["a", -1.5]]}})"),
              HasSubstr("model.type: 'Unigram' isn't supported; supported: BPE"));
  EXPECT_THAT(error(R"({"decoder": null, "decoder": null})"), HasSubstr("decoder: given twice"));
  EXPECT_THAT(error(std::string(100, '[')), HasSubstr("nested more than 32 levels deep"));
}

}  // namespace
}  // namespace ovq::model::test
