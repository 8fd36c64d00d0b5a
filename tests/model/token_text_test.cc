#include "model/token_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text.h"
#include "model/tokenizers/chars.h"
#include "tests/folders.h"
#include "tests/model/model_test_util.h"
#include "tests/model/sentencepiece_util.h"
#include "tests/model/tokenizers/bpe_util.h"

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;

ModelConfig Config(TokenizerKind kind, int64_t vocab_size) {
  ModelConfig config;
  config.vocab_size = vocab_size;
  config.tokenizer = kind;
  return config;
}

std::unique_ptr<Tokenizer> LoadBpe(const nlohmann::json& file) {
  const TempFolder folder;
  folder.Write("tokenizer.json", file.dump());
  return *Tokenizer::Load(folder.path(), Config(TokenizerKind::kBpe, 1000));
}

std::vector<int64_t> Offsets(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                             bool at_start = true) {
  TextOffsets offsets(&tokenizer, at_start);
  std::vector<int64_t> places;
  for (const int32_t id : ids) places.push_back(offsets.Add(id));
  return places;
}

std::string Joined(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!tokenizer.IsSilent(id)) bytes += tokenizer.Bytes(id);
  }
  std::string text = ConsumeUtf8(bytes);
  return bytes.empty() ? text : text.append(kReplacementCharacter);
}

constexpr char kEuro[] = "a\xe2\x82\xac z";  // a character of three bytes in the middle

TEST(ShowToken, OfBytes) {
  ModelConfig config = Config(TokenizerKind::kBytes, 258);
  config.eos_token_ids = {257};
  const auto tokenizer = *Tokenizer::Load("", config);
  EXPECT_EQ(ShowToken(tokenizer.get(), 'a').text, "a");
  EXPECT_EQ(ShowToken(tokenizer.get(), 0xe2).bytes, "\xe2");
  EXPECT_EQ(ShowToken(tokenizer.get(), 0xe2).text, "bytes:\\xe2");
  EXPECT_EQ(ShowToken(tokenizer.get(), 257).text, "token_id:257");
  EXPECT_EQ(ShowToken(nullptr, 7).text, "token_id:7");
  EXPECT_EQ(ShowToken(nullptr, 7).bytes, "");
  std::set<std::string> texts;
  for (int32_t id = 0; id < 258; ++id) texts.insert(ShowToken(tokenizer.get(), id).text);
  EXPECT_EQ(texts.size(), 258u);
  const std::vector<int32_t> ids = *tokenizer->Encode(kEuro, false);
  EXPECT_THAT(Offsets(*tokenizer, ids), ElementsAre(0, 1, 1, 1, 2, 3));
}

TEST(ShowToken, OfByteLevelBpe) {
  std::vector<std::string> vocab = ByteChars();
  vocab.insert(vocab.end(), {"Ġâ", "ac", "<|end|>"});  // "Ġâ" is " \xe2"
  const auto tokenizer = LoadBpe(TokenizerJson(
      vocab, {"Ġ â", "a c"},
      {{"pre_tokenizer", {{"type", "ByteLevel"}}},
       {"decoder", {{"type", "ByteLevel"}}},
       {"added_tokens", {{{"id", 258}, {"content", "<|end|>"}, {"special", true}}}}}));
  EXPECT_EQ(ShowToken(tokenizer.get(), 256).bytes, " \xe2");
  EXPECT_EQ(ShowToken(tokenizer.get(), 256).text, "bytes: \\xe2");
  EXPECT_EQ(ShowToken(tokenizer.get(), 0xac).text, "bytes:\\xac");
  EXPECT_EQ(ShowToken(tokenizer.get(), 258).bytes, "<|end|>");
  EXPECT_EQ(ShowToken(tokenizer.get(), 999).text, "token_id:999");
  // "x", " \xe2", "\x82", "\xac", a special token, "ac"
  EXPECT_THAT(Offsets(*tokenizer, {'x', 256, 0x82, 0xac, 258, 257}), ElementsAre(0, 1, 2, 2, 3, 3));
}

TEST(ShowToken, OfByteFallback) {
  std::vector<std::string> vocab = {"▁a", "b", "<s>"};
  for (int byte = 0; byte < 256; ++byte) vocab.push_back(absl::StrFormat("<0x%02X>", byte));
  const auto tokenizer = LoadBpe(
      TokenizerJson(vocab, {},
                    {{"decoder",
                      {{"type", "Sequence"},
                       {"decoders",
                        {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
                     {"added_tokens", {{{"id", 2}, {"content", "<s>"}, {"special", true}}}}}));
  EXPECT_EQ(ShowToken(tokenizer.get(), 0).text, " a");
  EXPECT_EQ(ShowToken(tokenizer.get(), 2).text, "<s>");
  EXPECT_EQ(ShowToken(tokenizer.get(), 3 + 0xe2).text, "bytes:\\xe2");
  EXPECT_EQ(ShowToken(tokenizer.get(), 3 + '\n').bytes, "\n");
  // "a", two characters in six byte tokens, which are released together, and "b"
  const std::vector<int32_t> ids = {2,        0,        3 + 0xe2, 3 + 0x82, 3 + 0xac,
                                    3 + 0xe2, 3 + 0x82, 3 + 0xac, 1};
  EXPECT_EQ(*tokenizer->Decode(ids),
            "a\xe2\x82\xac\xe2\x82\xac"
            "b");
  EXPECT_THAT(Offsets(*tokenizer, ids), ElementsAre(0, 0, 1, 1, 1, 2, 2, 2, 3));
  // In a run that is no text each byte is a replacement character.
  EXPECT_THAT(Offsets(*tokenizer, {1, 3 + 0xe2, 3 + 0x82, 1, 1}), ElementsAre(0, 1, 1, 3, 4));
}

TEST(ShowToken, OfSentencePiece) {
  const TempFolder folder;
  std::string corpus;
  for (int i = 0; i < 300; ++i) corpus += absl::StrCat("the quick brown fox number ", i * 7, "\n");
  folder.Write("corpus.txt", corpus);
  TrainPieces(folder.file("corpus.txt"), folder.file("tokenizer"), 330);
  ModelConfig config = Config(TokenizerKind::kSentencePiece, 330);
  config.bos_token_id = 1;
  const auto tokenizer = *Tokenizer::Load(folder.path(), config);
  EXPECT_EQ(ShowToken(tokenizer.get(), 1).text, "<s>");
  EXPECT_EQ(tokenizer->special_tokens().at(2), "</s>");
  EXPECT_EQ(ShowToken(tokenizer.get(), 3 + 0xe2).text, "bytes:\\xe2");
  const std::string text = std::string("the fox") + kEuro + " fox";
  const std::vector<int32_t> ids = *tokenizer->Encode(text, true);
  EXPECT_EQ(Joined(*tokenizer, ids), " " + text);
  // Every token stands where the text before it ends; the space before the first is left out.
  std::string before;
  const std::vector<int64_t> offsets = Offsets(*tokenizer, ids);
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t chars = static_cast<int64_t>(CountChars(before));
    if (!FirstInvalidUtf8(before)) {
      EXPECT_EQ(offsets[i], std::max<int64_t>(chars - 1, 0)) << i;
    }
    if (!tokenizer->IsSilent(ids[i])) before += tokenizer->Bytes(ids[i]);
  }
}

TEST(TextOffsets, ACharacterThatThePromptBeganIsThatOfTheFirstToken) {
  const auto tokenizer = *Tokenizer::Load("", Config(TokenizerKind::kBytes, 256));
  TextOffsets offsets(tokenizer.get(), /*at_start=*/false);
  offsets.Precede(std::vector<int32_t>{'a', 0xf0, 0x9f});
  std::vector<int64_t> places;
  for (const int32_t id : {0x99, 0x82, 0x21}) places.push_back(offsets.Add(id));
  EXPECT_THAT(places, ElementsAre(0, 0, 1));
}

// Replaced bytes are characters, too: the place behind the last token is the text's length.
TEST(TextOffsets, FitTheTextWhateverTheTokens) {
  const auto tokenizer = *Tokenizer::Load(GoldenFolder() + "/tokenizers/own-llama3-type",
                                          Config(TokenizerKind::kBpe, 2000));
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<int32_t> ids(1 + random() % 20);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 600);
    EXPECT_EQ(Joined(*tokenizer, ids), *tokenizer->Decode(ids));
    ids.push_back(*tokenizer->Encode("a", false)->begin());
    const std::string text = *tokenizer->Decode(ids);
    EXPECT_EQ(Offsets(*tokenizer, ids).back() + 1, static_cast<int64_t>(CountChars(text)));
  }
}

}  // namespace
}  // namespace ovq::model::test
