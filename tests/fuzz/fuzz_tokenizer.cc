// Fuzzes tokenizer.json, then after a byte 0 a text, and after another byte 0 ids: either an error
// that names the field, or a tokenizer whose ids are in range and whose text does not depend on how
// it is split. Other files of the folder may come first: "@NAME:CONTENT" and a byte 0 each; with an
// empty tokenizer.json the folder has none.
#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "model/token_text.h"
#include "model/tokenizer.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

namespace ovq::fuzz {
namespace {

// Writes a file that is read together with tokenizer.json, or instead of it.
void WriteOther(const model::test::TempFolder& folder, std::string_view word) {
  constexpr std::array kNames = {"tokenizer_config.json", "vocab.json", "merges.txt",
                                 "added_tokens.json"};
  const size_t colon = word.find(':');
  const auto name = std::ranges::find(kNames, word.substr(1, colon - 1));
  if (colon != word.npos && name != kNames.end()) folder.Write(*name, word.substr(colon + 1));
}

void Decode(const model::Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  model::Detokenizer detokenizer(&tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Push(id);
    Check(!FirstInvalidUtf8(part), "every part is whole characters");
    text += part;
  }
  text += detokenizer.Finish();
  model::TextOffsets offsets(&tokenizer, /*at_start=*/true);
  int64_t place = 0;
  for (const int32_t id : ids) {
    Check(!FirstInvalidUtf8(model::ShowToken(&tokenizer, id).text), "a token's name is UTF-8");
    const int64_t before = std::exchange(place, offsets.Add(id));
    Check(place >= before, "tokens stand in their order");
  }
  const absl::StatusOr<std::string> whole = tokenizer.Decode(ids);
  Check(whole.ok() && *whole == text, "one by one and all at once");
  // An answer continues a prompt, of which the detokenizer keeps only the start of a character.
  model::Detokenizer later(&tokenizer, /*at_start=*/false);
  const size_t prompt = ids.size() / 2;
  later.Precede(std::span(ids).first(prompt));
  std::string rest;
  for (size_t i = prompt; i < ids.size(); ++i) rest += later.Push(ids[i]);
  rest += later.Finish();
  Check(!FirstInvalidUtf8(rest), "what goes on from other tokens is whole characters, too");
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  static const model::test::TempFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::remove(entry);
  }
  fuzz::Bytes bytes(data, size);
  std::string_view word = bytes.Word();
  for (; word.starts_with('@'); word = bytes.Word()) fuzz::WriteOther(folder, word);
  if (!word.empty()) folder.Write("tokenizer.json", word);
  model::ModelConfig config;
  config.vocab_size = 512;
  config.tokenizer = model::TokenizerKind::kBpe;
  const absl::StatusOr<std::unique_ptr<model::Tokenizer>> loaded =
      model::Tokenizer::Load(folder.path(), config);
  if (!loaded.ok()) {
    Check(loaded.status().message().find(folder.path()) != std::string_view::npos,
          "an error names the file");
    return 0;
  }
  const model::Tokenizer& tokenizer = **loaded;
  for (const auto& [id, text] : tokenizer.special_tokens()) {
    Check(id >= 0 && id < config.vocab_size, "a special token is the model's");
  }
  const std::string_view text = bytes.Word();
  for (const bool whole : {false, true}) {
    const absl::StatusOr<std::vector<int32_t>> ids = tokenizer.Encode(text, whole);
    if (!ids.ok()) {
      Check(!ids.status().message().empty(), "an error says what is wrong");
      continue;
    }
    Check(std::ranges::all_of(*ids, [&](int32_t id) { return tokenizer.HasToken(id); }),
          "ids are the tokenizer's");
    fuzz::Decode(tokenizer, *ids);
  }
  for (const std::string& note : tokenizer.notes()) Check(!note.empty(), "a note says something");
  std::vector<int32_t> ids;
  while (!bytes.empty()) ids.push_back(2 * bytes.Byte() + bytes.Upto(1));
  fuzz::Decode(tokenizer, ids);
  return 0;
}
