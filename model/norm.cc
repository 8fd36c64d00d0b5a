#include "model/norm.h"

#include <string>
#include <vector>

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
  if (!exists()) return;
  const std::string leaf(name);
  weight_ = reader.NormWeight(absl::StrCat(leaf, ".weight"), width, spec.weight);
  if (spec.bias) {
    bias_ = reader.Floats(absl::StrCat(leaf, ".bias"), {width});
  } else if (spec.kind == NormKind::kLayer) {  // the LayerNorm operation always adds a bias
    const std::vector<float> zeros(static_cast<size_t>(width), 0);
    bias_ = reader.context().Upload(zeros.data(), zeros.size() * sizeof(float));
  }
}

void Norm::Apply(DeviceContext& context, TensorView x, TensorView y,
                 std::span<const int32_t> rows) const {
  const NormWeights weights = {Vector(weight_), Vector(bias_), spec_.eps};
  switch (spec_.kind) {
    case NormKind::kRms:
      return RmsNorm(context, x, weights, y, rows);
    case NormKind::kLayer:
      return LayerNorm(context, x, weights, y, rows);
    case NormKind::kNone:
      return rows.empty() ? Copy(context, x, y) : Embed(context, x, rows, y);
  }
}

}  // namespace ovq
