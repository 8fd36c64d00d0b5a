// A safetensors file, mapped read-only.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "kernels/common/tensor.h"

namespace ovq {

// What is wrong with a tensor that cannot be read, by its name.
using DamagedTensors = std::map<std::string, absl::Status, std::less<>>;

// One mapped safetensors file. Checked: header length within the file and at most 100 MB, a JSON
// object without duplicate names, known dtypes, bytes = shape x dtype, and tensors that fill the
// rest of the file end to end, each aligned to its elements. Of a tensor with more dimensions than
// a Shape has, the last ones are folded into one. DataLoss names the file, the tensor and what was
// expected.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
  // As much of it as can be read: OK, or all that is wrong (SplitProblems).
  static absl::Status Open(const std::string& path, SafetensorsFile& file);
  const TensorMap& tensors() const { return tensors_; }
  const DamagedTensors& damaged() const { return damaged_; }
  size_t file_bytes() const { return map_.size(); }
  // When the tensors have been read: whether they are what the file had (MappedFile).
  absl::Status CheckWhole() const { return map_.CheckUnchanged(); }

 private:
  MappedFile map_;
  TensorMap tensors_;
  DamagedTensors damaged_;
};

// DataLoss "path: what", or "path: tensor 'name': what".
absl::Status Damaged(const std::string& path, std::string_view what);
absl::Status Damaged(const std::string& path, std::string_view tensor, std::string_view what);
// An object whose values are all strings.
bool IsTextMap(const nlohmann::json& json);

}  // namespace ovq
