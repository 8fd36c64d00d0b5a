// GgufWeight: a tensor of a family of transformers' checkpoints, made of a GGUF file's.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/gguf/gguf_file.h"

namespace ovq::model {

struct GgufWeight {
  std::string name;  // in the family's files; a tensor that the family has not keeps its own
  kernels::Shape shape;
  std::vector<std::string> names;  // of the tensors that it is made of, in the GGUF file
  std::vector<GgufTensor> parts;   // they, or the slice of one
  // Writes a row of shape's last dimension as float32. Empty: the elements are the file's, of a
  // type that GetTensor gives.
  std::function<void(int64_t row, std::span<float> to)> write_row;
};

// All tensors of a file whose architecture is known, but for those that are fields of GgufConfig.
absl::StatusOr<std::vector<GgufWeight>> GgufWeights(const GgufFile& file);

}  // namespace ovq::model
