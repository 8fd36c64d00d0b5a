#include "model/norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"

namespace ovq {
namespace {

TensorView Vector(const Buffer& floats) {
  return {floats.as<float>(), DType::kF32, {static_cast<int64_t>(floats.bytes() / sizeof(float))}};
}

}  // namespace

Norm::Norm(WeightReader& reader, std::string_view name, const NormSpec& spec, int64_t width)
    : spec_(spec) {
  weight_ = reader.Floats(absl::StrCat(std::string(name), ".weight"), {width});
  if (spec.has_bias()) {
    bias_ = reader.Floats(absl::StrCat(std::string(name), ".bias"), {width});
  }
}

void Norm::Apply(DeviceContext& context, TensorView x, TensorView y,
                 std::span<const int32_t> rows) const {
  const NormWeights weights = {Vector(weight_), Vector(bias_), spec_.eps};
  if (spec_.kind == NormKind::kRms) {
    RmsNorm(context, x, weights, y, rows);
  } else {
    LayerNorm(context, x, weights, y, rows);
  }
}

}  // namespace ovq
