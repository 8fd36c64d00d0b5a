// Fuzzes quantized weights. The first byte chooses a form, the rest is a safetensors file. All
// tensors that can be made are made, and all data that is read lies within the file.
#include "model/quantization.h"
#include "model/weights.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  using Json = nlohmann::json;
  static const model::test::TempFolder folder;
  static const Json forms[] = {
      {{"quant_method", "fp8"}, {"weight_block_size", {12, 20}}},
      {{"quant_method", "compressed-tensors"}},
      {{"quant_method", "awq"}, {"bits", 4}},
      {{"quant_method", "gptq"}, {"bits", 4}},
      {{"quant_method", "gptq"}, {"bits", 8}, {"checkpoint_format", "gptq_v2"}}};
  fuzz::Bytes bytes(data, size);
  model::QuantizationSpec spec;
  Check(model::ReadQuantization(forms[bytes.Byte() % std::size(forms)], spec).ok(), "a known form");
  folder.Write("model.safetensors", bytes.Rest());
  model::Weights weights;
  if (!model::Weights::Open(folder.path(), weights).ok()) return 0;
  const absl::Status status = model::AddQuantized(spec, weights);
  Check(status.ok() || !status.message().empty(), "an error says what is wrong");
  for (const auto& [name, made] : weights.made()) {
    const absl::StatusOr<kernels::TensorView> taken = weights.GetTensor(name, made.shape);
    Check(taken.ok() || !taken.status().message().empty(), "a tensor, or why not");
  }
  const model::RoundingLoss loss = model::MeasureLoss(weights);
  Check(!(loss.bf16 < 0) && !(loss.int8 < 0), "a loss is no gain");
  return 0;
}
