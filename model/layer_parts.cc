#include "model/layer_parts.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/common/token_shift.h"

namespace ovq::model {
namespace {

kernels::TensorView Vector(const kernels::Buffer& floats) {
  const auto width = static_cast<int64_t>(floats.bytes() / sizeof(float));
  return {floats.as<float>(), kernels::DType::kF32, {width}};
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
    bias_ = reader.context().Upload(zeros);
  }
}

kernels::NormWeights Norm::weights() const { return {Vector(weight_), Vector(bias_), spec_.eps}; }

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
  const float scale = layer.norm_after ? 1 : residual_scale_;
  if (spec.mixture) mixture_ = Mixture(reader, *spec.mixture, spec.kind, d_model, scale);
  if (spec.width == 0) return;
  std::vector<kernels::WeightPart> parts, biases;
  if (spec.kind != FeedForwardKind::kSquaredRelu) {
    parts.push_back({"mlp.gate_proj.weight", spec.width});
    biases.push_back({"mlp.gate_proj.bias", spec.width});
  }
  parts.push_back({"mlp.up_proj.weight", spec.width});
  biases.push_back({"mlp.up_proj.bias", spec.width});
  inner_ = reader.Product(parts, d_model);
  outer_ = reader.Product({{"mlp.down_proj.weight", d_model}}, spec.width, scale);
  if (!spec.bias) return;
  inner_bias_ = reader.Floats(biases);
  outer_bias_ = reader.Floats({{"mlp.down_proj.bias", d_model}}, scale);
}

void FeedForward::Activate(kernels::DeviceContext& context, const kernels::ProductRows& rows,
                           kernels::TensorView y) const {
  if (spec_.kind == FeedForwardKind::kGatedSilu && !spec_.bias) {
    return inner_.ApplySwiGlu(context, rows, y);
  }
  kernels::ScratchScope scope(context);
  const kernels::TensorView inner = scope.Tensor(kernels::DType::kF32, {y.shape[0], inner_.out()});
  inner_.Apply(context, rows, inner);
  if (spec_.bias) kernels::AddBias(context, inner, Vector(inner_bias_), 1);
  const auto activate = spec_.kind == FeedForwardKind::kGatedSilu   ? kernels::SwiGlu
                        : spec_.kind == FeedForwardKind::kGatedGelu ? kernels::GeGlu
                                                                    : kernels::SquaredRelu;
  activate(context, inner, y);
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
  const bool adds = !post_norm_.exists();
  const kernels::TensorView& y = adds ? h : activations.added;
  if (!mixture_.exists()) {
    ForwardDense(context, rows, y, adds);
  } else if (mixture_.has_gate()) {
    const kernels::TensorView shared = scope.Tensor(kernels::DType::kF32, h.shape);
    ForwardDense(context, rows, shared, /*adds=*/false);
    mixture_.Forward(context, x, y, adds, shared.as<float>());
  } else if (spec_.width > 0) {
    ForwardDense(context, rows, y, adds);
    mixture_.Forward(context, x, y, /*adds=*/true);
  } else {
    mixture_.Forward(context, rows, y, adds);
  }
  if (!adds) activations.AddNormed(context, post_norm_, residual_scale_);
}

void FeedForward::ForwardDense(kernels::DeviceContext& context, const kernels::ProductRows& rows,
                               kernels::TensorView y, bool adds) const {
  kernels::ScratchScope scope(context);
  const int64_t n = rows.x.shape[0];
  const kernels::TensorView active = scope.Tensor(rows.x.dtype, {n, spec_.width});
  Activate(context, rows, active);
  outer_.Apply(context, active, y, adds);
  if (spec_.bias) kernels::AddBias(context, y, Vector(outer_bias_), 1);
}

}  // namespace ovq::model
