// SafetensorsFile: a safetensors file, mapped read-only.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "kernels/common/tensor.h"

namespace ovq::model {

// The errors of tensors that cannot be read, by name.
using DamagedTensors = std::map<std::string, absl::Status, std::less<>>;

// One mapped safetensors file. Open checks that the header lies within the file, has at most 100 MB
// and is a JSON object without duplicate names, that dtypes are known, that each tensor has shape x
// dtype bytes, and that tensors fill the rest of the file without gaps, each aligned to its
// elements. Dimensions beyond Shape::kMaxRank are folded into the last one. DataLoss names the
// file, the tensor and what was expected.
class SafetensorsFile {
 public:
  // Opens as much as is valid. OK, or all problems (SplitProblems).
  static absl::Status Open(const std::string& path, SafetensorsFile& file);
  const kernels::TensorMap& tensors() const { return tensors_; }
  const DamagedTensors& damaged() const { return damaged_; }
  // Call this after reading the tensors: DataLoss if the file changed meanwhile (MappedFile).
  absl::Status CheckWhole() const { return map_.CheckUnchanged(); }

 private:
  MappedFile map_;
  kernels::TensorMap tensors_;
  DamagedTensors damaged_;
};

// DataLoss "path: what", or "path: tensor 'name': what".
absl::Status Damaged(const std::string& path, absl::string_view what);
absl::Status Damaged(const std::string& path, std::string_view tensor, absl::string_view what);
// Whether this is an object whose values are all strings.
bool IsTextMap(const nlohmann::json& json);

}  // namespace ovq::model
