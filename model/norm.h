// A norm of a decoder with its weights: NormSpec.
#pragma once

#include <span>
#include <string_view>

#include "kernels/mixers/weight_reader.h"
#include "model/config.h"

namespace ovq {

class Norm {
 public:
  Norm() = default;
  // Takes NAME.weight, if it has one, and, with a bias, NAME.bias. Its errors are the reader's.
  Norm(WeightReader& reader, std::string_view name, const NormSpec& spec, int64_t width);

  bool exists() const { return spec_.kind != NormKind::kNone; }
  // y[i] = norm(x[rows[i]]), or of every row of x if `rows` is empty. x [n, width] F32; y F32 or
  // BF16, possibly x itself.
  void Apply(DeviceContext& context, TensorView x, TensorView y,
             std::span<const int32_t> rows = {}) const;
  size_t bytes() const { return weight_.bytes() + bias_.bytes(); }

 private:
  NormSpec spec_ = {.kind = NormKind::kNone};
  Buffer weight_, bias_;  // [width] float
};

}  // namespace ovq
