// Fuzzes weight files. After a first byte of 0: one safetensors file; otherwise an index, a byte 0
// and the shard "a.safetensors". All data that is read lies within the files.
#include "model/weights.h"
#include "tests/fuzz/bytes.h"
#include "tests/model/model_test_util.h"

namespace {

// Sum of the tensor's bytes; a sanitizer watches the reads.
uint64_t Read(const ovq::model::StoredTensor& tensor) {
  uint64_t sum = 0;
  for (const std::byte byte : tensor.bytes) sum += static_cast<uint64_t>(byte);
  return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  static const model::test::TempFolder folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    std::filesystem::remove(entry);
  }
  fuzz::Bytes bytes(data, size);
  if (bytes.Byte() == 0) {
    folder.Write("model.safetensors", bytes.Rest());
  } else {
    folder.Write("model.safetensors.index.json", bytes.Word());
    folder.Write("a.safetensors", bytes.Rest());
  }
  model::Weights weights;
  const absl::Status status = model::Weights::Open(folder.path(), weights);
  Check(status.ok() || !status.message().empty(), "an error says what is wrong");
  static volatile uint64_t sum;
  for (const auto& [name, tensor] : weights.tensors()) sum = sum + Read(tensor);
  if (!status.ok()) return 0;
  Check(weights.Fingerprint().size() == 64, "every model has a fingerprint");
  for (const auto& [name, tensor] : weights.tensors()) {
    const absl::StatusOr<kernels::TensorView> taken = weights.GetTensor(name, tensor.shape);
    Check(taken.ok() || !taken.status().message().empty(), "a tensor, or why not");
  }
  Check(weights.CheckWhole().ok(), "nobody wrote them meanwhile");
  Check(weights.CheckAllUsed([](std::string_view) { return false; }).ok(), "all were asked for");
  return 0;
}
