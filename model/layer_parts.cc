#include "model/layer_parts.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/token_shift.h"

namespace ovq::model {

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

kernels::NormWeights Norm::weights() const {
  const auto vector = [](const kernels::Buffer& floats) -> kernels::TensorView {
    const auto width = static_cast<int64_t>(floats.bytes() / sizeof(float));
    return {floats.as<float>(), kernels::DType::kF32, {width}};
  };
  return {vector(weight_), vector(bias_), spec_.eps};
}

void Norm::Apply(kernels::DeviceContext& context, kernels::TensorView x, kernels::TensorView y,
                 std::span<const int32_t> rows) const {
  switch (spec_.kind) {
    case NormKind::kRms:
      return kernels::RmsNorm(context, x, weights(), y, rows);
    case NormKind::kLayer:
      return kernels::LayerNorm(context, x, weights(), y, rows);
    case NormKind::kNone:
      return rows.empty() ? kernels::Copy(context, x, y) : kernels::Embed(context, x, rows, y);
  }
}

kernels::ProductRows Norm::ForProducts(kernels::DeviceContext& context, kernels::TensorView h,
                                       kernels::TensorView x, std::span<const int32_t> rows) const {
  kernels::ProductRows result = x;
  if (spec_.kind == NormKind::kRms) {
    result.norm = weights(), result.h = h, result.h_rows = rows;
  } else {
    Apply(context, h, x, rows);
  }
  return result;
}

FeedForward::FeedForward(kernels::WeightReader& reader, const ModelConfig& config,
                         const LayerSpec& layer)
    : spec_(layer.feed_forward), residual_scale_(config.residual_scale) {
  if (!exists()) return;
  const FeedForwardSpec& spec = spec_;
  const int64_t d_model = config.hidden_size;
  if (layer.norm_before && !spec.parallel) {
    norm_ = Norm(reader, "post_attention_layernorm", config.norm, d_model);
  }
  if (layer.norm_after) {
    post_norm_ = Norm(reader, "post_feedforward_layernorm", config.post_norm, d_model);
  }
  if (spec.token_shift) shift_ = reader.Floats("mlp.shift", {d_model});
  inner_ =
      spec.kind == FeedForwardKind::kGatedSilu
          ? reader.Product(
                {{"mlp.gate_proj.weight", spec.width}, {"mlp.up_proj.weight", spec.width}}, d_model)
          : reader.Product({{"mlp.up_proj.weight", spec.width}}, d_model);
  outer_ = reader.Product({{"mlp.down_proj.weight", d_model}}, spec.width,
                          layer.norm_after ? 1 : residual_scale_);
}

void FeedForward::Forward(kernels::DeviceContext& context, const kernels::BatchSequences& seqs,
                          const kernels::LayerState* where,
                          const LayerActivations& activations) const {
  if (!exists()) return;
  const kernels::TensorView &h = activations.h, &x = activations.x;
  kernels::ProductRows rows = x;
  kernels::ScratchScope scope(context);
  if (spec_.token_shift) {
    kernels::ScratchScope of_shift(context);
    const kernels::TensorView z = of_shift.Tensor(kernels::DType::kF32, h.shape);
    norm_.Apply(context, h, z);
    kernels::ShiftTokens(context, seqs,
                         {.x = z.as<float>(),
                          .x_stride = z.shape[1],
                          .width = z.shape[1],
                          .mix = shift_.as<float>(),
                          .newest = where->fixed_offset,
                          .begins_empty = true,
                          .y = x.data,
                          .y_dtype = x.dtype});
  } else if (!spec_.parallel) {
    rows = norm_.ForProducts(context, h, x);
  }
  const kernels::TensorView active = scope.Tensor(x.dtype, {h.shape[0], spec_.width});
  if (spec_.kind == FeedForwardKind::kGatedSilu) {
    inner_.ApplySwiGlu(context, rows, active);
  } else {
    kernels::ScratchScope of_inner(context);
    const kernels::TensorView inner =
        of_inner.Tensor(kernels::DType::kF32, {h.shape[0], inner_.out()});
    inner_.Apply(context, rows, inner);
    kernels::SquaredRelu(context, inner, active);
  }
  outer_.Apply(context, active, post_norm_.exists() ? activations.added : h,
               /*accumulate=*/!post_norm_.exists());
  if (post_norm_.exists()) activations.AddNormed(context, post_norm_, residual_scale_);
}

size_t FeedForward::bytes() const {
  return norm_.bytes() + post_norm_.bytes() + shift_.bytes() + inner_.bytes() + outer_.bytes();
}

}  // namespace ovq::model
