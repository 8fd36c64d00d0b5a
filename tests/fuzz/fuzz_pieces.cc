// Fuzzes SentencePiece models, read by their library: either refused, or able to encode and decode.
#include "model/tokenizer.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  static const model::test::TempFolder folder;
  folder.Write("tokenizer.model", fuzz::Text(data, size));
  std::string error;
  const auto model = model::LoadPieces(folder.file("tokenizer.model"), &error);
  if (!model) {
    Check(!error.empty(), "an error says what is wrong");
    return 0;
  }
  for (const std::string_view text :
       {"", "a", " def main(self):\n  return 1", "\xe2\x96\x81 \xf0\x9f\x98\x80", "\xff\xfe"}) {
    std::vector<int32_t> ids;
    if (!model->encode(text, &ids, &error)) continue;
    for (const int32_t id : ids) {
      Check(id >= 0 && id < model->size, "ids of the vocabulary");
      (void)model->text(id, true);
    }
  }
  for (int32_t id = 0; id < std::min(model->size, 300); ++id) {
    (void)model->text(id, false);
    (void)model->begins(id);
  }
  return 0;
}
