// Norm: a normalization of the decoder with its weights (NormSpec).
#pragma once

#include <span>
#include <string_view>

#include "kernels/mixers/weight_reader.h"
#include "model/config.h"

namespace ovq::model {

class Norm {
 public:
  Norm() = default;
  // Loads NAME.weight, if the spec has one, and NAME.bias, if it has a bias. The reader keeps
  // errors.
  Norm(kernels::WeightReader& reader, std::string_view name, const NormSpec& spec, int64_t width);

  bool exists() const { return spec_.kind != NormKind::kNone; }
  // y[i] = norm(x[rows[i]]), or norm(x[i]) if `rows` is empty. x [n, width] F32; y F32 or BF16,
  // possibly x itself.
  void Apply(kernels::DeviceContext& context, kernels::TensorView x, kernels::TensorView y,
             std::span<const int32_t> rows = {}) const;
  size_t bytes() const { return weight_.bytes() + bias_.bytes(); }

 private:
  NormSpec spec_ = {.kind = NormKind::kNone};
  kernels::Buffer weight_, bias_;  // [width] float
};

}  // namespace ovq::model
