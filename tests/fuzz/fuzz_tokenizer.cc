// tokenizer.json, behind a byte 0 a text, behind another ids: refused by name, or a tokenizer whose
// ids are its own and whose text is the same however it is cut.
#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "model/tokenizer.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

namespace ovq::fuzz {
namespace {

void Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(&tokenizer);
  std::string text;
  for (const int32_t id : ids) {
    const std::string part = detokenizer.Push(id);
    Check(!FirstInvalidUtf8(part), "every part is whole characters");
    text += part;
  }
  text += detokenizer.Finish();
  const absl::StatusOr<std::string> whole = tokenizer.Decode(ids);
  Check(whole.ok() && *whole == text, "one by one and all at once");
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  static const test::TempFolder folder;
  fuzz::Bytes bytes(data, size);
  folder.Write("tokenizer.json", bytes.Word());
  ModelConfig config;
  config.vocab_size = 512;
  config.tokenizer = TokenizerKind::kBpe;
  const absl::StatusOr<std::unique_ptr<Tokenizer>> loaded = Tokenizer::Load(folder.path(), config);
  if (!loaded.ok()) {
    Check(loaded.status().message().find("tokenizer.json") != std::string_view::npos,
          "an error names the file");
    return 0;
  }
  const Tokenizer& tokenizer = **loaded;
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
  std::vector<int32_t> ids;
  while (!bytes.empty()) ids.push_back(2 * bytes.Byte() + bytes.Upto(1));
  fuzz::Decode(tokenizer, ids);
  return 0;
}
