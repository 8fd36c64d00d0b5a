#include "model/tokenizers/decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/text.h"
#include "tests/model/model_test_util.h"
#include "tests/model/tokenizers/bpe_util.h"

namespace ovq::model::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using Texts = std::vector<std::string>;

TokenDecoder ReadDecoder(const Json& decoder) {
  const Json json = {{"decoder", decoder}};
  JsonFields file(json, "");
  absl::StatusOr<TokenDecoder> read = TokenDecoder::Read(file, "decoder");
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *std::move(read) : TokenDecoder();
}

// The text released after each token, then at the end.
Texts Decoded(const Json& json, const Texts& tokens, bool at_start = true) {
  const TokenDecoder decoder = ReadDecoder(json);
  DecodeStream stream(decoder, at_start);
  Texts texts;
  for (const std::string& token : tokens) texts.push_back(stream.Push(token));
  texts.push_back(stream.Finish());
  return texts;
}

Json Sequence(const std::vector<Json>& decoders) {
  return {{"type", "Sequence"}, {"decoders", decoders}};
}

Json Replace(const char* kind, const char* pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

const Json kFuse = {{"type", "Fuse"}};
const Json kByteFallback = {{"type", "ByteFallback"}};
const Json kByteLevel = {{"type", "ByteLevel"}};

TEST(TokenDecoder, EachType) {
  const std::string R(kReplacementCharacter);
  EXPECT_THAT(Decoded(nullptr, {"a", "b"}), ElementsAre("a", " b", ""));
  EXPECT_THAT(Decoded(kByteLevel, {"\xc4\xa0"
                                   "a",
                                   "\xc3\x83", "\xc2\xa9", "<\xe2\x96\x81>"}),
              ElementsAre(" a", "", "\xc3\xa9", "<\xe2\x96\x81>", ""));
  EXPECT_THAT(Decoded(kByteFallback, {"<0xC3>", "<0xA9>", "x", "<0xC3>", "<0xff>", "<0xC3"}),
              ElementsAre("", "", "\xc3\xa9x", "", "", R + R + "<0xC3", ""));
  EXPECT_THAT(Decoded({{"type", "Metaspace"}, {"replacement", "_"}}, {"__a", "_b_"}),
              ElementsAre("a", " b ", ""));
  EXPECT_THAT(Decoded({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "never"}},
                      {"_a", "_b"}),
              ElementsAre(" a", " b", ""));
  EXPECT_THAT(Decoded({{"type", "WordPiece"}}, {"do", "##n", "n't", ".", "x"}),
              ElementsAre("do", "n", "n't", ".", " x", ""));
  EXPECT_THAT(Decoded({{"type", "WordPiece"}, {"cleanup", false}}, {"a", "."}),
              ElementsAre("a", " .", ""));
  EXPECT_THAT(Decoded({{"type", "BPEDecoder"}}, {"a", "b</w>", "c</w>"}),
              ElementsAre("", "a", "b ", "c"));
  EXPECT_THAT(
      Decoded({{"type", "Strip"}, {"content", "_"}, {"start", 1}, {"stop", 1}}, {"__a_", "_"}),
      ElementsAre("_a", "", ""));
  EXPECT_THAT(Decoded(Replace("Regex", "[0-9]+", "#"), {"1", "2a3"}), ElementsAre("#", "#a#", ""));
}

// A Replace leaves a token as it is rather than make more than 1 MiB of a short one.
TEST(TokenDecoder, GrowthIsBounded) {
  constexpr size_t kMost = size_t{1} << 20;
  for (const char* kind : {"String", "Regex"}) {
    std::vector<Json> stages(22, Replace(kind, "a", "aa"));
    const Texts alone = Decoded(Sequence(stages), {"a", "b"});
    EXPECT_THAT(alone, ElementsAre(std::string(kMost, 'a'), "b", ""));
    stages.insert(stages.begin(), kFuse);
    const Texts fused = Decoded(Sequence(stages), {"a", "b"});
    const size_t n = kind[0] == 'S' ? kMost : kMost / 2;  // a regex has "ab" as a whole
    EXPECT_EQ(fused[0] + fused[1] + fused[2], std::string(n, 'a') + "b");
  }
}

// After Fuse a stage sees one token, the whole text: it holds back what may still change.
TEST(TokenDecoder, StagesBehindFuseSeeTheWholeText) {
  const Json strip = {{"type", "Strip"}, {"content", "_"}, {"start", 2}, {"stop", 1}};
  EXPECT_THAT(Decoded(Sequence({kFuse, strip}), {"_", "__a", "_", "_b_", "_"}),
              ElementsAre("", "_a", "", "__b", "_", ""));
  EXPECT_THAT(Decoded(Sequence({kFuse, Replace("String", "ab", "X")}), {"a", "ba", "c", "a"}),
              ElementsAre("", "X", "ac", "", "a"));
  EXPECT_THAT(Decoded(Sequence({kFuse, Replace("Regex", "a+", "X")}), {"a", "ab"}),
              ElementsAre("", "", "Xb"));
  EXPECT_THAT(
      Decoded(Sequence({kFuse, {{"type", "Metaspace"}, {"replacement", "_"}}}), {"_a", "_b"}),
      ElementsAre("a", "b", ""));
  EXPECT_THAT(Decoded(Sequence({kFuse, kByteLevel}), {"\xc4\xa0", "a"}), ElementsAre("", "", " a"));
  EXPECT_THAT(Decoded(Sequence({kFuse, kByteFallback}), {"<0x4", "1>"}), ElementsAre("", "", "A"));
  EXPECT_THAT(Decoded(Sequence({kFuse, {{"type", "BPEDecoder"}}}), {"a</w>", "b</w>"}),
              ElementsAre("", "", "ab"));
  EXPECT_THAT(Decoded(Sequence({kFuse, {{"type", "WordPiece"}}}), {"a", " ."}),
              ElementsAre("", "", "a."));
}

const Json kLlama = Sequence({Replace("String", "_", " "),
                              kByteFallback,
                              kFuse,
                              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});

TEST(TokenDecoder, ContinuationsKeepTheirBlank) {
  EXPECT_THAT(Decoded(kLlama, {"_a", "_b"}), ElementsAre("a", " b", ""));
  EXPECT_THAT(Decoded(kLlama, {"_a", "_b"}, /*at_start=*/false), ElementsAre(" a", " b", ""));
}

TEST(TokenDecoder, ACharacterBegunBeforeIsCompleted) {
  const auto after = [](const Json& json, const Texts& before, const Texts& tokens) {
    const TokenDecoder decoder = ReadDecoder(json);
    DecodeStream stream(decoder, /*at_start=*/false);
    for (const std::string& token : before) stream.Push(token);
    stream.Forget();
    std::string text;
    for (const std::string& token : tokens) text += stream.Push(token);
    return text + stream.Finish();
  };
  EXPECT_EQ(after(kLlama, {"_a", "<0x41>", "<0xC3>"}, {"<0xA9>", "_b"}), "\xc3\xa9 b");
  EXPECT_EQ(after(kLlama, {"_a", "<0xC3>", "<0xA9>"}, {"_b"}), " b");
  EXPECT_EQ(after(kByteLevel, {"a", "\xc3\x83"}, {"\xc2\xa9"}), "\xc3\xa9");
  EXPECT_EQ(after({{"type", "BPEDecoder"}}, {"a</w>"}, {"b</w>"}), " b");
  EXPECT_EQ(after(nullptr, {"a"}, {"b"}), " b");
}

// Every released piece is valid UTF-8, whatever the tokens are.
TEST(TokenDecoder, NeverSendsHalfACharacter) {
  const Texts bytes = ByteChars();
  std::mt19937 random(1);
  for (const Json& json : {kByteLevel, kLlama}) {
    for (int trial = 0; trial < 300; ++trial) {
      Texts tokens;
      for (size_t n = random() % 20; n > 0; --n) {
        const unsigned byte = random() % 2 ? 0x80 + random() % 128 : random() % 256;
        constexpr char kDigits[] = "0123456789ABCDEF";
        const std::string fallback =
            std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
        tokens.push_back(json == kByteLevel ? bytes[byte] : random() % 4 ? fallback : "_x");
      }
      for (const std::string& text : Decoded(json, tokens)) {
        EXPECT_EQ(FirstInvalidUtf8(text), std::nullopt);
      }
    }
  }
}

TEST(TokenDecoder, ErrorsNameTheirPlace) {
  const Json json = {{"decoder", Sequence({kFuse, {{"type", "Strip"}, {"content", "ab"}}})}};
  JsonFields file(json, "");
  EXPECT_EQ(Message(TokenDecoder::Read(file, "decoder").status()),
            "decoder.decoders[1].content: expected one character, got 'ab'");
}

}  // namespace
}  // namespace ovq::model::test
