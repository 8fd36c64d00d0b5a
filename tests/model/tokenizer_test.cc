#include "model/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "tests/folders.h"
#include "tests/model/model_test_util.h"
#include "tests/model/sentencepiece_util.h"

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig BytesConfig(int32_t offset = 0) {
  ModelConfig config;
  config.vocab_size = 256 + offset;
  config.tokenizer = TokenizerKind::kBytes;
  config.tokenizer_byte_offset = offset;
  return config;
}

std::string PushAll(Detokenizer& detokenizer, std::span<const int32_t> ids) {
  std::string text;
  for (int32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Finish();
}

std::vector<int32_t> Bytes(std::string_view text) {
  return std::vector<int32_t>(reinterpret_cast<const uint8_t*>(text.data()),
                              reinterpret_cast<const uint8_t*>(text.data()) + text.size());
}

TEST(ByteTokenizer, RoundTripsWithOffsetAndSpecialTokens) {
  ModelConfig config = BytesConfig(3);
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  const auto tokenizer = Tokenizer::Load("", config);
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_THAT(*(*tokenizer)->Encode("az", false), ElementsAre('a' + 3, 'z' + 3));
  EXPECT_THAT(*(*tokenizer)->Encode("a", true), ElementsAre(1, 'a' + 3));
  const std::string text("h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x99\x82\0.", 14);
  std::vector<int32_t> ids = *(*tokenizer)->Encode(text, true);
  ids.push_back(2);    // end of sequence
  ids.push_back(0);    // below the offset
  ids.push_back(999);  // outside the vocabulary
  EXPECT_EQ(*(*tokenizer)->Decode(ids), text);
}

TEST(NoTokenizer, SaysSo) {
  const auto tokenizer = Tokenizer::Load("", ModelConfig());
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_FALSE((*tokenizer)->has_text());
  EXPECT_EQ((*tokenizer)->Encode("a", true).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*tokenizer)->Decode({}).status().code(), absl::StatusCode::kFailedPrecondition);
  Detokenizer detokenizer(tokenizer->get());
  EXPECT_EQ(detokenizer.Push(65) + detokenizer.Finish(), "");
}

class Utf8 : public ::testing::Test {
 protected:
  std::string Decode(std::string_view bytes) const {
    Detokenizer detokenizer(tokenizer_.get());
    return PushAll(detokenizer, Bytes(bytes));
  }
  std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Load("", BytesConfig());
};

TEST_F(Utf8, CharactersAreNeverSplit) {
  Detokenizer detokenizer(tokenizer_.get());
  EXPECT_EQ(detokenizer.Push(0xf0), "");
  EXPECT_EQ(detokenizer.Push(0x9f), "");
  EXPECT_EQ(detokenizer.Push(0x99), "");
  EXPECT_EQ(detokenizer.Push(0x82), "\xf0\x9f\x99\x82");
  EXPECT_EQ(detokenizer.Push('a'), "a");
  EXPECT_EQ(detokenizer.Finish(), "");
}

// Examples of the Unicode standard (15.0, tables 3-8 to 3-11); R is U+FFFD.
TEST_F(Utf8, InvalidBytesAreReplacedByMaximalSubpart) {
  const std::string R = "\xef\xbf\xbd";
  EXPECT_EQ(Decode("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41"), R + R + R + R + R + R + R + R + "A");
  EXPECT_EQ(Decode("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41"), R + R + R + R + R + R + R + R + "A");
  EXPECT_EQ(Decode("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42"), R + R + R + R + R + "A" + R + R + "B");
  EXPECT_EQ(Decode("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41"), R + R + R + R + "A");
  EXPECT_EQ(Decode("\xe2\x82"), R);
  EXPECT_EQ(Decode("\xf5"), R);
}

TEST_F(Utf8, AnyBytesBecomeValidAndValidStaysUnchanged) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 2000; ++trial) {
    std::string bytes(1 + random() % 12, '\0');
    for (char& c : bytes)
      c = static_cast<char>(random() % 2 ? random() % 128 : 0x80 + random() % 128);
    const std::string text = Decode(bytes);
    EXPECT_EQ(Decode(text), text);                 // valid: no byte is replaced again
    EXPECT_NO_THROW(nlohmann::json(text).dump());  // throws on invalid UTF-8
  }
}

class SentencePiece : public ::testing::Test {
 protected:
  // Trains a small model with byte pieces once for all tests.
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    std::string corpus;
    for (int i = 0; i < 300; ++i) {
      corpus += "the quick brown fox number " + std::to_string(i * 7) + " jumps over lazy dogs\n";
      corpus += "a server keeps its state small, and answers do not depend on company\n";
    }
    folder_->Write("corpus.txt", corpus);
    TrainPieces(folder_->file("corpus.txt"), folder_->file("tokenizer"), kPieces);
  }
  static void TearDownTestSuite() { delete folder_; }

  static ModelConfig Config() {
    ModelConfig config;
    config.vocab_size = kPieces;
    config.tokenizer = TokenizerKind::kSentencePiece;
    config.bos_token_id = 1;
    config.eos_token_ids = {2};
    return config;
  }
  static std::unique_ptr<Tokenizer> Load() { return *Tokenizer::Load(folder_->path(), Config()); }

  static constexpr int kPieces = 400;
  static TempFolder* folder_;
};
TempFolder* SentencePiece::folder_ = nullptr;

TEST_F(SentencePiece, RoundTripsText) {
  const auto tokenizer = Load();
  for (const std::string text : {"the quick brown fox", "state", "", "42 dogs",
                                 "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x99\x82", "unseen ZQX letters",
                                 "a\xe2\x96\x81"
                                 "b"}) {
    const auto ids = tokenizer->Encode(text, false);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*tokenizer->Decode(*ids), ReferenceDecode(folder_->file("tokenizer.model"), *ids));
  }
  EXPECT_EQ(tokenizer->Encode("the fox", true)->front(), 1);
  EXPECT_EQ(*tokenizer->Decode(*tokenizer->Encode("the fox", true)), "the fox");
}

// A folder may have both files; only BPE's tokenizer.json is read.
TEST_F(SentencePiece, StandsInForATokenizerOfAnotherType) {
  const TempFolder both;
  both.Write("tokenizer.model", ReadBytes(folder_->file("tokenizer.model")));
  ModelConfig config = Config();
  config.tokenizer = TokenizerKind::kBpe;
  both.Write("tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
  const auto tokenizer = Tokenizer::Load(both.path(), config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->kind(), TokenizerKind::kSentencePiece);
  EXPECT_EQ(*(*tokenizer)->Encode("the fox", true), *Load()->Encode("the fox", true));
  both.Write("tokenizer.json", R"({"model": {"type": "BPE"}})");
  EXPECT_THAT(Message(Tokenizer::Load(both.path(), config).status()), HasSubstr("tokenizer.json"));
}

TEST_F(SentencePiece, BosIsAddedUnlessTokenizerConfigSaysNo) {
  const TempFolder folder;
  folder.Write("tokenizer.model", ReadBytes(folder_->file("tokenizer.model")));
  const auto ids = [&](const char* add_bos_token) {
    folder.Write("tokenizer_config.json",
                 absl::StrCat(R"({"add_bos_token": )", add_bos_token, "}"));
    const auto tokenizer = Tokenizer::Load(folder.path(), Config());
    Check(tokenizer.ok(), Message(tokenizer.status()).c_str());
    EXPECT_TRUE((*tokenizer)->IsSilent(1));
    return *(*tokenizer)->Encode("the fox", true);
  };
  EXPECT_EQ(ids("null"), *Load()->Encode("the fox", true));
  EXPECT_EQ(ids("true"), *Load()->Encode("the fox", true));
  EXPECT_EQ(ids("false"), *Load()->Encode("the fox", false));
  folder.Write("tokenizer_config.json", R"({"add_bos_token": "no"})");
  EXPECT_THAT(Message(Tokenizer::Load(folder.path(), Config()).status()),
              HasSubstr("tokenizer_config.json: add_bos_token: expected true or false"));
}

TEST_F(SentencePiece, TokensThatItDoesNotHaveAreNoted) {
  EXPECT_THAT(Load()->notes(), ElementsAre());
  const TempFolder folder;
  folder.Write("tokenizer.model", ReadBytes(folder_->file("tokenizer.model")));
  const auto notes = [&] {
    const auto tokenizer = Tokenizer::Load(folder.path(), Config());
    Check(tokenizer.ok(), Message(tokenizer.status()).c_str());
    return (*tokenizer)->notes();
  };
  folder.Write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"1": {"content": "<s>"}, "x": 7}})");
  EXPECT_THAT(notes(), ElementsAre());
  folder.Write("added_tokens.json", R"({"<end>": 401, "<turn>": 400, "<s>": 1})");
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("from '<turn>' with the id 400 on")));
  folder.Write("tokenizer_config.json",
               R"({"added_tokens_decoder": {"402": {"content": "<x>"}, "10": {"content": "a"}}})");
  folder.Write("added_tokens.json", "{}");
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("from '<x>' with the id 402 on")));
}

TEST_F(SentencePiece, AnyPiecesDecodeAsTheLibraryDoes) {
  const auto tokenizer = Load();
  std::mt19937 random(3);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<int32_t> ids(1 + random() % 8);
    // Without byte pieces: the library replaces each byte of an unfinished character separately.
    for (int32_t& id : ids) {
      do id = static_cast<int32_t>(random() % kPieces);
      while (id >= 3 && id < 3 + 256);
    }
    EXPECT_EQ(*tokenizer->Decode(ids), ReferenceDecode(folder_->file("tokenizer.model"), ids))
        << ::testing::PrintToString(ids);
  }
}

TEST_F(SentencePiece, IncrementalEqualsWhole) {
  const auto tokenizer = Load();
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int32_t> ids(random() % 10);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % kPieces);
    Detokenizer detokenizer(tokenizer.get());
    EXPECT_EQ(PushAll(detokenizer, ids), *tokenizer->Decode(ids));
  }
}

TEST_F(SentencePiece, ContinuationKeepsItsLeadingSpace) {
  const auto tokenizer = Load();
  const std::vector<int32_t> ids = *tokenizer->Encode("fox", false);
  Detokenizer start(tokenizer.get());
  EXPECT_EQ(PushAll(start, ids), "fox");
  Detokenizer later(tokenizer.get(), /*at_start=*/false);
  EXPECT_EQ(PushAll(later, ids), " fox");
}

TEST_F(SentencePiece, RefusesFilesThatDoNotFit) {
  ModelConfig config = Config();
  config.vocab_size = kPieces - 1;
  const absl::Status larger = Tokenizer::Load(folder_->path(), config).status();
  EXPECT_EQ(larger.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(larger), HasSubstr("tokenizer.model: has 400 pieces, but vocab_size is 399"));
  const TempFolder other;
  for (std::string_view text : {"", "not a model", "\x0a\xff\xff\xff\xff\x0f"}) {
    other.Write("tokenizer.model", text);
    const absl::Status status = Tokenizer::Load(other.path(), Config()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(Message(status),
                HasSubstr("tokenizer.model: expected a SentencePiece model, but "));
  }
}

class BpeFront : public ::testing::Test {
 protected:
  static ModelConfig Config() {
    ModelConfig config;
    config.vocab_size = 2000;
    config.tokenizer = TokenizerKind::kBpe;
    config.bos_token_id = 1342;
    config.eos_token_ids = {1344, 1345};
    return config;
  }
  const std::string folder_ = GoldenFolder() + "/tokenizers/own-llama3-type";
  const std::unique_ptr<Tokenizer> tokenizer_ = *Tokenizer::Load(folder_, Config());
};

TEST_F(BpeFront, BosIsTheFilesOwn) {
  EXPECT_TRUE(tokenizer_->has_text());
  EXPECT_EQ(tokenizer_->kind(), TokenizerKind::kBpe);
  EXPECT_THAT(*tokenizer_->Encode("Hello world", false), ElementsAre(348, 356));
  EXPECT_THAT(*tokenizer_->Encode("Hello world", true), ElementsAre(1342, 348, 356));
}

// 1343 is special by the file, 1345 by the model's config, 1999 has no token.
TEST_F(BpeFront, SpecialTokensAndPaddingHaveNoText) {
  EXPECT_EQ(*tokenizer_->Decode(std::vector<int32_t>{1342, 1343, 348, 1345, 1999, 356}),
            "Hello world");
  EXPECT_EQ(*tokenizer_->Decode(std::vector<int32_t>{1346}), "</think>");
}

TEST_F(BpeFront, IncrementalEqualsWhole) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int32_t> ids(random() % 20);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 2000);
    Detokenizer detokenizer(tokenizer_.get());
    EXPECT_EQ(PushAll(detokenizer, ids), *tokenizer_->Decode(ids));
  }
}

TEST_F(BpeFront, VocabularyLargerThanTheModels) {
  ModelConfig config = Config();
  config.vocab_size = 1346;
  EXPECT_THAT(Message(Tokenizer::Load(folder_, config).status()),
              HasSubstr("tokenizer.json: added_tokens[4].id: expected an integer in [0, 1345]"));
}

TEST(Detokenizer, CompletesACharacterThatThePromptBegan) {
  const auto tokenizer = *Tokenizer::Load("", BytesConfig());
  Detokenizer detokenizer(tokenizer.get(), /*at_start=*/false);
  detokenizer.Precede(Bytes("a\xf0\x9f"));
  EXPECT_EQ(PushAll(detokenizer, Bytes("\x99\x82!")), "\xf0\x9f\x99\x82!");
}

}  // namespace
}  // namespace ovq::model::test
