// Weights of a model folder: safetensors mapped read-only, one file or shards with an index.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/tensor.h"

namespace ovq {

// One mapped safetensors file. Checked: header length within the file and at most 100 MB, a JSON
// object without duplicate names, known dtypes, bytes = shape x dtype, and tensors that fill the
// rest of the file end to end, each aligned to its elements. DataLoss names the file, the tensor
// and what was expected.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  const TensorMap& tensors() const { return tensors_; }
  size_t file_bytes() const { return bytes_; }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Unmap> map_;
  size_t bytes_ = 0;
  TensorMap tensors_;
};

class Weights {
 public:
  // model.safetensors, else the shards of model.safetensors.index.json.
  static absl::StatusOr<Weights> Open(const std::string& folder);

  // The named tensor, checked: InvalidArgument "model.norm.weight: expected [64], got [32]".
  // NotFound if absent. F32, BF16 and F16 are accepted.
  absl::StatusOr<TensorView> Take(std::string_view name, const Shape& shape);
  bool Has(std::string_view name) const;
  // InvalidArgument naming the first tensor that no part of the model took, but for those that
  // may_stay.
  absl::Status CheckAllTaken(bool (*may_stay)(std::string_view name)) const;
  // SHA-256 over names, dtypes, shapes and data, hex: the model's fingerprint with its config.
  std::string Fingerprint() const;
  int64_t elements() const;  // of all tensors

 private:
  std::vector<SafetensorsFile> files_;
  TensorMap tensors_;
  std::set<std::string, std::less<>> taken_;
};

}  // namespace ovq
