// Ids, texts and errors of other implementations: tests/golden/tokenizers, and public vocabularies
// in the folder OVQ_TOKENIZER_FIXTURES, if that is set.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/text.h"
#include "model/tokenizers/pre_tokenizer.h"
#include "tests/folders.h"
#include "tests/model/gguf/gguf_test_util.h"
#include "tests/model/model_test_util.h"
#include "tests/model/tokenizers/bpe_util.h"

namespace ovq::model::test {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const std::string kFixtures = GoldenFolder() + "/tokenizers/";

using Ids = std::vector<int32_t>;

// The input: a text, or the bytes that encode it.
std::string ReadInput(const Json& c) {
  if (!c.contains("bytes_hex")) return c["text"];
  return absl::HexStringToBytes(c["bytes_hex"].get<std::string>());
}

void ExpectDecodes(const BpeTokenizer& tokenizer, const Json& c, const std::string& key,
                   const std::string& fallback, bool skip_special) {
  const std::string text = Decode(tokenizer, c["ids"].get<Ids>(), skip_special);
  if (c.contains(key + "_either")) {
    EXPECT_THAT(c[key + "_either"].get<std::vector<std::string>>(), ::testing::Contains(text));
  } else {
    EXPECT_EQ(text, c.value(key, fallback));
  }
}

void CheckCase(const BpeTokenizer& tokenizer, const Json& c) {
  SCOPED_TRACE(c.value("label", Quoted(c["text"].get<std::string>())));
  Ids ids = Encode(tokenizer, ReadInput(c));
  const PostProcessor& ends = tokenizer.ends();
  if (c.value("add_special_tokens", false)) {
    ids.insert(ids.begin(), ends.before.begin(), ends.before.end());
    ids.insert(ids.end(), ends.after.begin(), ends.after.end());
  }
  EXPECT_TRUE(ids == c["ids"].get<Ids>()) << ::testing::PrintToString(ids).substr(0, 300) << "\n"
                                          << c["ids"].dump().substr(0, 300);
  ExpectDecodes(tokenizer, c, "decoded", c["text"], /*skip_special=*/false);
  if (!c.contains("ids_with_special")) return;
  ids.insert(ids.begin(), ends.before.begin(), ends.before.end());
  ids.insert(ids.end(), ends.after.begin(), ends.after.end());
  EXPECT_THAT(ids, ElementsAreArray(c["ids_with_special"].get<Ids>()));
}

// Checks the tokenizer of a model, by default the folder's own, with the folder's cases.
void CheckFolder(const std::string& folder, const std::string& model = "") {
  const absl::StatusOr<std::unique_ptr<BpeTokenizer>> tokenizer =
      BpeTokenizer::Load(model.empty() ? folder : model, kManyIds);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Json cases = ReadJsonFile(folder + "/cases.json");
  ASSERT_GT(cases.size(), 200u);
  for (const Json& c : cases) CheckCase(**tokenizer, c);
  for (const Json& c : ReadJsonFile(folder + "/decode.json")) {
    SCOPED_TRACE(c["ids"].dump().substr(0, 300));
    const Ids ids = c["ids"];
    EXPECT_EQ(Decode(**tokenizer, ids), c["text"]);
    EXPECT_EQ(Decode(**tokenizer, ids, /*skip_special=*/true), c["text_skip_special"]);
    EXPECT_THAT(Stream(**tokenizer, ids, /*skip_special=*/false),
                ElementsAreArray(c["stream"].get<std::vector<std::string>>()));
  }
}

enum TokenType : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

// Writes a tokenizer.json as llama.cpp's converter writes it to GGUF. pre: ggml's name of its
// pre-tokenizer, or "llama" for SentencePiece's.
std::string AsGguf(const Json& file, const std::string& pre) {
  const Json& model = file["model"];
  const bool has_scores = pre == "llama";
  std::map<int64_t, std::pair<std::string, TokenType>> by_id;
  for (const auto& [token, id] : model["vocab"].items()) {
    const bool is_byte = has_scores && token.size() == 6 && token.starts_with("<0x");
    by_id[id] = {token, is_byte ? kByte : kNormal};
  }
  for (const Json& token : file["added_tokens"]) {
    by_id[token["id"]] = {token["content"], token["special"] == true ? kControl : kUserDefined};
  }
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  for (const auto& [id, token] : by_id) {
    for (int64_t unused = static_cast<int64_t>(tokens.size()); unused < id; ++unused) {
      tokens.push_back(absl::StrCat("[PAD", unused, "]"));
      types.push_back(kUnused);
    }
    tokens.push_back(token.first);
    types.push_back(model.value("unk_token", Json()) == token.first ? kUnknown : token.second);
  }
  std::map<std::string, float> ranks;  // of the first merge that makes a token
  for (const Json& merge : model["merges"]) {
    merges.push_back(merge.is_string() ? merge.get<std::string>()
                                       : absl::StrCat(merge[0].get<std::string>(), " ",
                                                      merge[1].get<std::string>()));
    std::string made = merges.back();
    made.erase(made.find(' '), 1);
    ranks.emplace(made, static_cast<float>(ranks.size()));
  }
  for (const std::string& token : tokens) {
    scores.push_back(ranks.contains(token) ? -ranks[token] : 0);
  }
  GgufWriter writer;
  writer.Key("general.architecture", has_scores ? "phi3" : "llama");
  writer.Key("tokenizer.ggml.model", has_scores ? "llama" : "gpt2");
  writer.Key("tokenizer.ggml.pre", has_scores ? "default" : pre);
  writer.List("tokenizer.ggml.tokens", kTextKind, tokens);
  writer.List("tokenizer.ggml.token_type", kI32, types);
  if (has_scores) {
    writer.List("tokenizer.ggml.scores", kF32Kind, scores);
  } else {
    writer.List("tokenizer.ggml.merges", kTextKind, merges);
  }
  const auto bos = std::ranges::find(tokens, "<|bos|>");
  if (bos != tokens.end()) {
    writer.Key("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos - tokens.begin()));
  }
  return writer.Bytes();
}

void CheckAsGguf(const std::string& folder, const std::string& pre) {
  const TempFolder temporary;
  temporary.Write("model.gguf", AsGguf(ReadJsonFile(folder + "/tokenizer.json"), pre));
  CheckFolder(folder, temporary.file("model.gguf"));
}

TEST(TokenizerFixtures, QwenTypeInGguf) { CheckAsGguf(kFixtures + "own-qwen3.5-type", "qwen35"); }
TEST(TokenizerFixtures, Llama3TypeInGguf) {
  CheckAsGguf(kFixtures + "own-llama3-type", "llama-bpe");
}
TEST(TokenizerFixtures, QwenType) { CheckFolder(kFixtures + "own-qwen3.5-type"); }
TEST(TokenizerFixtures, Llama3Type) { CheckFolder(kFixtures + "own-llama3-type"); }

TEST(TokenizerFixtures, EachFeature) {
  const Json features = ReadJsonFile(kFixtures + "features.json");
  ASSERT_EQ(features.size(), 33u);
  for (const Json& feature : features) {
    SCOPED_TRACE(feature["name"].get<std::string>());
    const std::unique_ptr<BpeTokenizer> tokenizer = MakeTokenizer(feature["tokenizer"]);
    ASSERT_NE(tokenizer, nullptr);
    for (const Json& c : feature["cases"]) {
      CheckCase(*tokenizer, c);
      ExpectDecodes(*tokenizer, c, "decoded_skip_special", c["text"], /*skip_special=*/true);
    }
  }
}

TEST(TokenizerFixtures, WrongFilesAreRefusedWithTheirPlace) {
  const Json errors = ReadJsonFile(kFixtures + "errors.json");
  ASSERT_EQ(errors.size(), 27u);
  for (const Json& error : errors) {
    SCOPED_TRACE(error["name"].get<std::string>());
    const std::string text = error.contains("text")
                                 ? error["text"].get<std::string>()
                                 : absl::HexStringToBytes(error["bytes_hex"].get<std::string>());
    const absl::Status status = ParseTokenizer(text).status();
    EXPECT_THAT(Message(status), HasSubstr("/tokenizer.json: "));
    for (const std::string words : error["error_must_mention"]) {
      EXPECT_THAT(Message(status), HasSubstr(words));
    }
  }
}

// Public vocabularies are other people's data, and not in this repository.
class PublicTokenizers : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* root = std::getenv("OVQ_TOKENIZER_FIXTURES");
    if (root == nullptr) GTEST_SKIP() << "OVQ_TOKENIZER_FIXTURES is not set: no " << GetParam();
    ASSERT_TRUE(std::filesystem::is_directory(root)) << "OVQ_TOKENIZER_FIXTURES: " << root;
    path_ = std::string(root) + "/" + GetParam();
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << "there is no " << path_;
  }
  std::string path_;
};

using PublicVocabulary = PublicTokenizers;
TEST_P(PublicVocabulary, GivesTheIdsOfOthers) { CheckFolder(path_); }
TEST_P(PublicVocabulary, GivesThemInGguf) {
  const std::map<std::string, std::string> pres = {{"gpt2", "gpt-2"},
                                                   {"granite4-cl100k", "dbrx"},
                                                   {"phi3-bytefallback", "llama"},
                                                   {"neox-olmo", "olmo"}};
  const auto pre = pres.find(GetParam());
  if (pre == pres.end()) GTEST_SKIP() << "its pre-tokenizer is not served in GGUF files";
  CheckAsGguf(path_, pre->second);
}
INSTANTIATE_TEST_SUITE_P(All, PublicVocabulary,
                         ::testing::Values("gpt2", "granite4-cl100k", "phi3-bytefallback", "falcon",
                                           "neox-olmo"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

class SplitPatterns : public PublicTokenizers {};
TEST_P(SplitPatterns, CutAsTheLibraryDoes) {
  size_t n_cases = 0;
  for (const Json& split : ReadJsonFile(path_)) {
    SCOPED_TRACE(split["name"].get<std::string>());
    const Json json = {{"pre_tokenizer",
                        {{"type", "Split"},
                         {"pattern", {{"Regex", split["pattern"]}}},
                         {"behavior", split["behavior"]},
                         {"invert", split["invert"]}}}};
    JsonFields file(json, "");
    const absl::StatusOr<PreTokenizer> splitter = PreTokenizer::Read(file, "pre_tokenizer", false);
    ASSERT_TRUE(splitter.ok()) << splitter.status();
    for (const Json& c : split["cases"]) {
      ++n_cases;
      Words words(c["text"], /*starts=*/true);
      ASSERT_TRUE(splitter->Apply(words).ok());
      std::vector<std::string> pieces;
      for (const TextSpan& span : words.spans) {
        pieces.push_back(words.text.substr(span.begin, span.end - span.begin));
      }
      EXPECT_THAT(pieces, ElementsAreArray(c["pieces"].get<std::vector<std::string>>()))
          << c["text"];
    }
  }
  EXPECT_EQ(n_cases, 1470u);
}
INSTANTIATE_TEST_SUITE_P(All, SplitPatterns, ::testing::Values("split-regex.json"),
                         [](const auto&) { return "published"; });

}  // namespace
}  // namespace ovq::model::test
