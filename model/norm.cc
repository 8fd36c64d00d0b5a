#include "model/norm.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/ops/ops.h"

namespace ovq::model {
namespace {

kernels::TensorView Vector(const kernels::Buffer& floats) {
  return {floats.as<float>(),
          kernels::DType::kF32,
          {static_cast<int64_t>(floats.bytes() / sizeof(float))}};
}

}  // namespace

Norm::Norm(kernels::WeightReader& reader, std::string_view name, const NormSpec& spec,
           int64_t width)
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

void Norm::Apply(kernels::DeviceContext& context, kernels::TensorView x, kernels::TensorView y,
                 std::span<const int32_t> rows) const {
  const kernels::NormWeights weights = {Vector(weight_), Vector(bias_), spec_.eps};
  switch (spec_.kind) {
    case NormKind::kRms:
      return kernels::RmsNorm(context, x, weights, y, rows);
    case NormKind::kLayer:
      return kernels::LayerNorm(context, x, weights, y, rows);
    case NormKind::kNone:
      return rows.empty() ? kernels::Copy(context, x, y) : kernels::Embed(context, x, rows, y);
  }
}

}  // namespace ovq::model
