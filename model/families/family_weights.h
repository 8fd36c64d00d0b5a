// The decoder's tensors, taken from a checkpoint under its family's names.
#pragma once

#include <cstddef>
#include <deque>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/families/family.h"
#include "model/weights.h"

namespace ovq {

class FamilyWeights {
 public:
  // Both outlive it.
  FamilyWeights(const ModelConfig& config, Weights& weights) : config_(config), weights_(weights) {}

  // The decoder's tensor `name`. Errors name it as the file does. The view is one of the file's
  // memory, or of a copy where its elements lie scattered.
  absl::StatusOr<TensorView> GetTensor(std::string_view name, const Shape& shape);
  // Ends the views of copies.
  void ForgetCopies() { copies_.clear(); }

 private:
  const ModelConfig& config_;
  Weights& weights_;
  std::deque<std::vector<std::byte>> copies_;
};

}  // namespace ovq
