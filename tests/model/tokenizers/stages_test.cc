// Pipeline stages that the fixtures do not cover, or not alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizers/normalizer.h"
#include "model/tokenizers/post_processor.h"
#include "model/tokenizers/pre_tokenizer.h"
#include "tests/model/model_test_util.h"
#include "tests/model/tokenizers/bpe_util.h"

namespace ovq::model::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Normalized(const Json& normalizer, std::string text) {
  const Json json = {{"normalizer", normalizer}};
  JsonFields file(json, "");
  const absl::StatusOr<Normalizer> read = Normalizer::Read(file, "normalizer");
  EXPECT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read.ok() && read->Apply(text).ok());
  return text;
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const Json& pre_tokenizer, bool keep_bytes = false) {
  const Json json = {{"pre_tokenizer", pre_tokenizer}};
  JsonFields file(json, "");
  return PreTokenizer::Read(file, "pre_tokenizer", keep_bytes);
}

std::vector<std::string> Cut(const Json& pre_tokenizer, const std::string& text,
                             bool at_start = true) {
  const absl::StatusOr<PreTokenizer> read = ReadPreTokenizer(pre_tokenizer);
  EXPECT_TRUE(read.ok()) << read.status();
  Words words(text, at_start);
  EXPECT_TRUE(read.ok() && read->Apply(words).ok());
  std::vector<std::string> pieces;
  for (const TextSpan& span : words.spans) {
    pieces.push_back(words.text.substr(span.begin, span.end - span.begin));
  }
  return pieces;
}

TEST(Normalizer, EachType) {
  EXPECT_EQ(Normalized({{"type", "Lowercase"}}, "A\xc3\x89\xc4\xb0"), "a\xc3\xa9i\xcc\x87");
  EXPECT_EQ(Normalized({{"type", "StripAccents"}}, "e\xcc\x81!"), "e!");
  EXPECT_EQ(Normalized({{"type", "Strip"}}, "\xc2\xa0 a b\t\n"), "a b");
  EXPECT_EQ(Normalized({{"type", "Strip"}, {"strip_left", false}}, " a "), " a");
  EXPECT_EQ(Normalized({{"type", "Strip"}}, " \t "), "");
  EXPECT_EQ(Normalized({{"type", "Prepend"}, {"prepend", "_"}}, "a"), "_a");
  EXPECT_EQ(Normalized({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
  EXPECT_EQ(Normalized({{"type", "ByteLevel"}}, " \xc3\xa9"), "\xc4\xa0\xc3\x83\xc2\xa9");
  EXPECT_EQ(Normalized({{"type", "Nmt"}}, "a\x01\tb\xe2\x80\x8b"), "a b ");
  EXPECT_EQ(Normalized({{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}}, "a"),
            "a");
}

Json RepeatedStage(const char* children, int n, const Json& stage) {
  Json stages = Json::array();
  for (int i = 0; i < n; ++i) stages.push_back(stage);
  return {{"type", "Sequence"}, {children, stages}};
}

// Each of n stages replaces "a" by "aa".
Json Doublings(int n) {
  return RepeatedStage("normalizers", n,
                       {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
}

absl::Status NormalizerProblem(const Json& normalizer, std::string text) {
  const Json json = {{"normalizer", normalizer}};
  JsonFields file(json, "");
  const absl::StatusOr<Normalizer> read = Normalizer::Read(file, "normalizer");
  return read.ok() ? read->Apply(text) : read.status();
}

TEST(Normalizer, GrowthIsBounded) {
  constexpr size_t kMost = size_t{1} << 20;
  EXPECT_EQ(Normalized(Doublings(20), "a"), std::string(kMost, 'a'));
  for (const int n : {21, 40}) {
    const absl::Status status = NormalizerProblem(Doublings(n), "a");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(status), HasSubstr("more than 1048576 bytes of a text"));
  }
  const std::string text(kMost / 32, 'a');  // may become 64 times as long
  EXPECT_EQ(Normalized(Doublings(6), text).size(), 2 * kMost);
  EXPECT_THAT(Message(NormalizerProblem(Doublings(7), text)), HasSubstr("more than 2097152"));
  const Json once = {
      {"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", std::string(65, 'b')}};
  EXPECT_THAT(Message(NormalizerProblem(once, text)), HasSubstr("more than 2097152"));
  const Json bytes = RepeatedStage("normalizers", 40, {{"type", "ByteLevel"}});
  EXPECT_THAT(Message(NormalizerProblem(bytes, "\xc3\xa9")), HasSubstr("more than 1048576"));
  EXPECT_TRUE(NormalizerProblem(Doublings(256), "b").ok());
  EXPECT_EQ(Message(NormalizerProblem(Doublings(257), "b")),
            "normalizer: expected at most 256 stages");
}

TEST(Normalizer, Bert) {
  EXPECT_EQ(Normalized({{"type", "BertNormalizer"}}, "H\xc3\xa9\n\x01 \xe4\xb8\xad"),
            "he   \xe4\xb8\xad ");
  // Line tabulation, form feed and U+0085 are controls first, U+2028 is white space alone.
  EXPECT_EQ(Normalized({{"type", "BertNormalizer"}}, "a\x0b\x0c\xc2\x85\t\xe2\x80\xa8z"), "a  z");
  EXPECT_EQ(Normalized({{"type", "BertNormalizer"},
                        {"lowercase", false},
                        {"handle_chinese_chars", false},
                        {"clean_text", false}},
                       "H\xc3\xa9\n\xe4\xb8\xad"),
            "H\xc3\xa9\n\xe4\xb8\xad");
}

TEST(PreTokenizer, EachType) {
  EXPECT_THAT(Cut({{"type", "WhitespaceSplit"}}, " a, b\tc "), ElementsAre("a,", "b", "c"));
  EXPECT_THAT(Cut({{"type", "Whitespace"}}, "a,b c!?"), ElementsAre("a", ",", "b", "c", "!?"));
  // A superscript is no word character, a joiner and a letter in a circle are.
  EXPECT_THAT(Cut({{"type", "Whitespace"}}, " 5 m\u00b2 a\u200db\u24b6\u2028!?"),
              ElementsAre("5", "m", "\u00b2", "a\u200db\u24b6", "!?"));
  EXPECT_THAT(Cut({{"type", "BertPreTokenizer"}}, "a, b"), ElementsAre("a", ",", "b"));
  EXPECT_THAT(Cut({{"type", "CharDelimiterSplit"}, {"delimiter", "-"}}, "a-b--c"),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(Cut({{"type", "FixedLength"}, {"length", 2}},
                  "a\xc3\xa9"
                  "bcd"),
              ElementsAre("a\xc3\xa9", "bc", "d"));
  EXPECT_THAT(Cut({{"type", "Digits"}, {"individual_digits", true}}, "a12\xc2\xbd"),
              ElementsAre("a", "1", "2", "\xc2\xbd"));
  EXPECT_THAT(Cut({{"type", "Digits"}}, "a12b"), ElementsAre("a", "12", "b"));
  EXPECT_THAT(Cut({{"type", "Punctuation"}}, "a!?"), ElementsAre("a", "!", "?"));
  EXPECT_THAT(Cut({{"type", "ByteLevel"}}, "a b"), ElementsAre("\xc4\xa0"
                                                               "a",
                                                               "\xc4\xa0"
                                                               "b"));
  EXPECT_THAT(Cut({{"type", "WhitespaceSplit"}}, ""), ElementsAre());
}

TEST(PreTokenizer, MetaspacePrependsByItsScheme) {
  const auto cut = [](const Json& fields, const std::string& text, bool at_start) {
    Json json = fields;
    json.update({{"type", "Metaspace"}, {"replacement", "_"}});
    return Cut(json, text, at_start);
  };
  EXPECT_THAT(cut({{"prepend_scheme", "always"}}, "a b", false), ElementsAre("_a", "_b"));
  EXPECT_THAT(cut({{"prepend_scheme", "first"}}, "a b", true), ElementsAre("_a", "_b"));
  EXPECT_THAT(cut({{"prepend_scheme", "first"}}, "a b", false), ElementsAre("a", "_b"));
  EXPECT_THAT(cut({{"prepend_scheme", "never"}}, "a b", true), ElementsAre("a", "_b"));
  EXPECT_THAT(cut({{"prepend_scheme", "always"}}, " a", true), ElementsAre("_a"));
  EXPECT_THAT(cut({{"add_prefix_space", false}}, "a b", true), ElementsAre("a", "_b"));
  EXPECT_THAT(cut({{"add_prefix_space", true}, {"split", false}}, "a b", true),
              ElementsAre("_a_b"));
}

TEST(PreTokenizer, KeepsBytesOnlyInTheLastStage) {
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json digits = {{"type", "Digits"}};
  const Json last = {{"type", "Sequence"}, {"pretokenizers", {digits, byte_level}}};
  const Json inner = {{"type", "Sequence"}, {"pretokenizers", {byte_level, digits}}};
  EXPECT_TRUE(ReadPreTokenizer(last, true)->gives_bytes());
  EXPECT_FALSE(ReadPreTokenizer(last, false)->gives_bytes());
  EXPECT_FALSE(ReadPreTokenizer(inner, true)->gives_bytes());
  // The byte 0xb2 is the digit ² of the byte alphabet; the text is split after the mapping.
  EXPECT_THAT(Cut(inner, "a\xe2\x80\xb2"), ElementsAre("a\xc3\xa2\xc4\xa2", "\xc2\xb2"));
}

TEST(PreTokenizer, GrowthIsBounded) {
  const auto read = ReadPreTokenizer(
      RepeatedStage("pretokenizers", 40,
                    {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}));
  ASSERT_TRUE(read.ok()) << read.status();
  Words plain("a", true), grows("\xc3\xa9", true);
  EXPECT_TRUE(read->Apply(plain).ok());
  const absl::Status status = read->Apply(grows);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(status), HasSubstr("more than 1048576 bytes of a text"));
}

TEST(PreTokenizer, ErrorsNameTheirPlace) {
  const auto error = [](const Json& json) { return Message(ReadPreTokenizer(json).status()); };
  EXPECT_THAT(error({{"type", "Split"}, {"behavior", "Isolated"}}),
              HasSubstr("pre_tokenizer.pattern: expected an object, but it is missing"));
  EXPECT_THAT(error({{"type", "Split"}, {"pattern", {{"Char", "x"}}}, {"behavior", "Isolated"}}),
              HasSubstr("pre_tokenizer.pattern: expected {\"String\""));
  EXPECT_THAT(error({{"type", "FixedLength"}, {"length", 0}}),
              HasSubstr("pre_tokenizer.length: expected an integer in [1, "));
  EXPECT_THAT(error({{"type", "CharDelimiterSplit"}, {"delimiter", "ab"}}),
              HasSubstr("pre_tokenizer.delimiter: expected one character, got 'ab'"));
  EXPECT_THAT(
      error({{"type", "Metaspace"}, {"add_prefix_space", false}, {"prepend_scheme", "first"}}),
      HasSubstr("pre_tokenizer.prepend_scheme: contradicts"));
  EXPECT_THAT(error({{"type", "Sequence"}, {"pretokenizers", {{{"type", "Digits"}}, 5}}}),
              HasSubstr("pre_tokenizer.pretokenizers[1]: expected an object, got 5"));
}

absl::StatusOr<PostProcessor> ReadEnds(const Json& post_processor) {
  const Json json = {{"post_processor", post_processor}};
  JsonFields file(json, "");
  return PostProcessor::Read(file, "post_processor", 100);
}

TEST(PostProcessor, EachType) {
  for (const char* type : {"RobertaProcessing", "BertProcessing"}) {
    const absl::StatusOr<PostProcessor> ends =
        ReadEnds({{"type", type}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 1}}});
    ASSERT_TRUE(ends.ok()) << ends.status();
    EXPECT_THAT(ends->before, ElementsAre(1));
    EXPECT_THAT(ends->after, ElementsAre(2));
  }
  const Json roberta = {{"type", "RobertaProcessing"}, {"sep", {"</s>", 2}}, {"cls", {"<s>", 1}}};
  const Json with_bos = {
      {"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "<b>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"<b>", {{"ids", {7, 8}}}}}}};
  const absl::StatusOr<PostProcessor> both =
      ReadEnds({{"type", "Sequence"}, {"processors", {roberta, with_bos}}});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(both->before, ElementsAre(7, 8, 1));
  EXPECT_THAT(both->after, ElementsAre(2));
}

TEST(PostProcessor, ErrorsNameTheirPlace) {
  const auto error = [](const Json& json) { return Message(ReadEnds(json).status()); };
  EXPECT_THAT(error({{"type", "BertProcessing"}, {"sep", {"</s>", 100}}, {"cls", {"<s>", 1}}}),
              HasSubstr("post_processor.sep: expected a token and its id, below 100"));
  const Json text = {{{"Sequence", {{"id", "A"}}}}};
  const Json special = {{{"SpecialToken", {{"id", "<q>"}}}}};
  EXPECT_THAT(error({{"type", "TemplateProcessing"},
                     {"single", text},
                     {"pair", special},
                     {"special_tokens", Json::object()}}),
              HasSubstr("post_processor.special_tokens: has no '<q>'"));
  EXPECT_THAT(error({{"type", "TemplateProcessing"}, {"single", Json::array()}}),
              HasSubstr("post_processor.single: expected one Sequence"));
  EXPECT_THAT(error({{"type", "TemplateProcessing"},
                     {"single", {{{"SpecialToken", {{"id", "<b>"}}}}}},
                     {"special_tokens", {{"<b>", {{"ids", {100}}}}}}}),
              HasSubstr("special_tokens.<b>.ids: expected a list of integers in [0, 99], got 100"));
}

}  // namespace
}  // namespace ovq::model::test
