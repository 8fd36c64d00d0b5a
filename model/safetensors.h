// SafetensorsFile: a safetensors file, mapped read-only.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "kernels/common/tensor.h"

namespace ovq::model {

// The errors of tensors that cannot be read, by name.
using DamagedTensors = std::map<std::string, absl::Status, std::less<>>;

// A tensor as a file has it, of any type: whether it can be used is for its user to decide.
struct StoredTensor {
  std::string dtype;                 // the file's name of it, e.g. "F8_E4M3"
  kernels::Shape shape;              // dimensions beyond kMaxRank are folded into the last one
  std::span<const std::byte> bytes;  // mapped; may begin at any address
};
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// The type of that name, if it is F32, BF16 or F16.
std::optional<kernels::DType> FloatDType(std::string_view name);

// One mapped safetensors file. Open checks that the header lies within the file, has at most 100 MB
// and is a JSON object without duplicate names, that each tensor has shape x dtype bytes, unless
// the format does not define the dtype, and that tensors fill the rest of the file without gaps.
// DataLoss names the file, the tensor and what was expected.
class SafetensorsFile {
 public:
  // Opens as much as is valid. OK, or all problems (SplitProblems).
  static absl::Status Open(const std::string& path, SafetensorsFile& file);
  const StoredTensors& tensors() const { return tensors_; }
  const DamagedTensors& damaged() const { return damaged_; }
  // Call this after reading the tensors: DataLoss if the file changed meanwhile (MappedFile).
  absl::Status CheckWhole() const { return map_.CheckUnchanged(); }

 private:
  MappedFile map_;
  StoredTensors tensors_;
  DamagedTensors damaged_;
};

// DataLoss "path: what", or "path: tensor 'name': what".
absl::Status Damaged(const std::string& path, absl::string_view what);
absl::Status Damaged(const std::string& path, std::string_view tensor, absl::string_view what);
// Whether this is an object whose values are all strings.
bool IsTextMap(const nlohmann::json& json);

}  // namespace ovq::model
