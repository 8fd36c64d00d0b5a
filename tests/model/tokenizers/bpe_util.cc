#include "tests/model/tokenizers/bpe_util.h"

#include <gtest/gtest.h>

#include "model/tokenizers/byte_alphabet.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {

using Json = nlohmann::json;

Json ReadJsonFile(const std::string& path) { return Json::parse(ReadBytes(path)); }

absl::StatusOr<std::unique_ptr<BpeTokenizer>> ParseTokenizer(std::string_view text,
                                                             int64_t vocab_size) {
  const TempFolder folder;
  folder.Write("tokenizer.json", text);
  return BpeTokenizer::Load(folder.path(), vocab_size);
}

std::unique_ptr<BpeTokenizer> MakeTokenizer(const Json& file) {
  absl::StatusOr<std::unique_ptr<BpeTokenizer>> tokenizer = ParseTokenizer(file.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

Json TokenizerJson(const std::vector<std::string>& vocab, const std::vector<std::string>& merges,
                   const Json& others) {
  Json file = others;
  Json& model = file["model"];
  model["type"] = "BPE";
  model["vocab"] = Json::object();
  for (size_t id = 0; id < vocab.size(); ++id) model["vocab"][vocab[id]] = id;
  model["merges"] = merges;
  return file;
}

std::vector<std::string> ByteChars() {
  std::vector<std::string> chars(256);
  for (int byte = 0; byte < 256; ++byte) AppendByteChar(static_cast<uint8_t>(byte), chars[byte]);
  return chars;
}

std::vector<int32_t> Encode(const BpeTokenizer& tokenizer, std::string_view text) {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

std::vector<std::string> Stream(const BpeTokenizer& tokenizer, const std::vector<int32_t>& ids,
                                bool skip_special) {
  DecodeStream stream(tokenizer.decoder(), /*at_start=*/true);
  std::vector<std::string> texts;
  for (int32_t id : ids) {
    const std::string* token = tokenizer.ForDecoder(id);
    const bool silent = token == nullptr || (skip_special && tokenizer.IsSpecial(id));
    texts.push_back(silent ? "" : stream.Push(*token));
  }
  texts.push_back(stream.Finish());
  return texts;
}

std::string Decode(const BpeTokenizer& tokenizer, const std::vector<int32_t>& ids,
                   bool skip_special) {
  std::string text;
  for (const std::string& piece : Stream(tokenizer, ids, skip_special)) text += piece;
  return text;
}

}  // namespace ovq::model::test
