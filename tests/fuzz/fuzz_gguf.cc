// Fuzzes a GGUF file: either errors that name the file, or a config, tensors that can be read and a
// tokenizer.
#include <array>

#include "base/check.h"
#include "base/text.h"
#include "model/chat_template/chat_format.h"
#include "model/load_config.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

namespace ovq::fuzz {
namespace {

// Whether it is OK; otherwise the error has to name the file.
bool IsOk(const absl::Status& status, const std::string& path) {
  Check(status.ok() || status.message().find(path) != absl::string_view::npos,
        "an error names the file");
  return status.ok();
}

void ReadTensors(const std::string& path) {
  model::Weights weights;
  if (!IsOk(model::Weights::Open(path, weights), path)) return;
  Check(weights.Fingerprint().size() == 64, "every model has a fingerprint");
  for (const auto& [name, stored] : weights.tensors()) {
    if (stored.shape.elements() > 1 << 20) continue;
    const absl::StatusOr<kernels::TensorView> tensor = weights.GetTensor(name, stored.shape);
    Check(tensor.ok() || !tensor.status().message().empty(), "a tensor, or why not");
    weights.FreeMade();
  }
  Check(weights.CheckWhole().ok(), "nobody wrote it meanwhile");
}

void ReadTokenizer(const std::string& path, const model::ModelConfig& config) {
  const auto tokenizer = model::Tokenizer::Load(path, config);
  if (!IsOk(tokenizer.status(), path)) return;
  const absl::StatusOr<std::vector<int32_t>> ids =
      (*tokenizer)->Encode("A text, 1234 <|im_end|> \xc3\xa9\n\n ", true);
  if (!ids.ok()) return;
  const absl::StatusOr<std::string> text = (*tokenizer)->Decode(*ids);
  Check(text.ok() && !FirstInvalidUtf8(*text), "a text is UTF-8");
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  static const model::test::TempFolder folder;
  const std::string path = folder.file("m.gguf");
  folder.Write("m.gguf", fuzz::Text(data, size));
  fuzz::ReadTensors(path);
  model::ModelConfig config;
  const bool has_config = fuzz::IsOk(model::LoadConfig(path, config), path);
  if (!has_config) {
    config = {};
    config.vocab_size = 512;
    config.tokenizer = model::TokenizerKind::kBpe;
  }
  fuzz::ReadTokenizer(path, config);
  fuzz::IsOk(jinja::ChatFormat::Load(path).status(), path);
  return 0;
}
