// The parts of a decoder's layer beside its mixer: Norm (NormSpec) and FeedForward
// (FeedForwardSpec), with their weights.
#pragma once

#include <span>
#include <string_view>

#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"
#include "model/config.h"
#include "model/mixture.h"

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
  // Gives x = norm(h[rows]) to products alone, the first of which may compute it.
  kernels::ProductRows ForProducts(kernels::DeviceContext& context, kernels::TensorView h,
                                   kernels::TensorView x, std::span<const int32_t> rows = {}) const;

 private:
  kernels::NormWeights weights() const;

  NormSpec spec_ = {.kind = NormKind::kNone};
  kernels::Buffer weight_, bias_;  // [width] float
};

// A batch's activations [n_tokens, d_model] between the parts of a layer.
struct LayerActivations {
  kernels::TensorView h;      // F32: the residual stream
  kernels::TensorView x;      // compute dtype: the input of a part
  kernels::TensorView added;  // F32: a part's output, if normed before it is added to h

  // h += scale norm(added)
  void AddNormed(kernels::DeviceContext& context, const Norm& norm, float scale) const {
    norm.Apply(context, added, added);
    kernels::AddScaled(context, h, 1, added, scale);
  }
};

class FeedForward {
 public:
  FeedForward() = default;
  // Loads the layer's post_attention_layernorm, mlp.* and post_feedforward_layernorm, as far as
  // `layer` has them. The reader keeps errors.
  FeedForward(kernels::WeightReader& reader, const ModelConfig& config, const LayerSpec& layer);

  bool exists() const { return spec_.exists(); }
  bool has_state() const { return spec_.token_shift; }
  // activations.h += f(norm(h)), with the variations of FeedForwardSpec and LayerSpec. `where`
  // locates the state of a token shift; null without one.
  void Forward(kernels::DeviceContext& context, const kernels::BatchSequences& seqs,
               const kernels::LayerState* where, const LayerActivations& activations) const;

 private:
  // Applies inner_, its bias and the activation: y [n, width] in the compute dtype.
  void Activate(kernels::DeviceContext& context, const kernels::ProductRows& rows,
                kernels::TensorView y) const;
  // y = f(rows), or y += f(rows) with `adds`, without the mixture; n rows.
  void ForwardDense(kernels::DeviceContext& context, const kernels::ProductRows& rows,
                    kernels::TensorView y, bool adds) const;

  FeedForwardSpec spec_;
  Norm norm_, post_norm_;
  float residual_scale_ = 1;
  kernels::Buffer shift_;  // [d_model] float, weights of the token shift
  kernels::Linear inner_;  // gated: [2 width, d_model], gate first; else [width, d_model]
  kernels::Linear outer_;  // [d_model, width], residual scale included unless a norm follows
  // Float [inner_.out()] and, with the scale of outer_, [d_model]; empty without biases.
  kernels::Buffer inner_bias_, outer_bias_;
  Mixture mixture_;  // beside inner_ and outer_, or in place of them
};

}  // namespace ovq::model
