// FamilyWeights gives the decoder's tensors from a checkpoint with its family's names.
#pragma once

#include <cstddef>
#include <deque>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/families/family.h"
#include "model/weights.h"

namespace ovq::model {

class FamilyWeights {
 public:
  // Both arguments outlive it.
  FamilyWeights(const ModelConfig& config, Weights& weights) : config_(config), weights_(weights) {}

  // The decoder's tensor `name`. Errors name it as the file does. The view is of the mapped file,
  // or of a copy if its elements are not contiguous there.
  absl::StatusOr<kernels::TensorView> GetTensor(std::string_view name, const kernels::Shape& shape);
  // Frees the copies and so invalidates their views.
  void ForgetCopies() { copies_.clear(); }

 private:
  const ModelConfig& config_;
  Weights& weights_;
  std::deque<std::vector<std::byte>> copies_;
};

}  // namespace ovq::model
