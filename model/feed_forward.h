// A decoder layer's second half: FeedForwardSpec.
#pragma once

#include "kernels/mixers/mixer.h"
#include "kernels/ops/ops.h"
#include "model/config.h"
#include "model/norm.h"

namespace ovq {

// A step's activations [n_tokens, d_model] between a layer's parts.
struct LayerActivations {
  TensorView h;      // F32: the residual stream
  TensorView x;      // of the compute dtype: what a part reads
  TensorView added;  // F32: what it gives, where that is normed before it is added to h

  // h += scale norm(added)
  void AddNormed(DeviceContext& context, const Norm& norm, float scale) const {
    norm.Apply(context, added, added);
    AddScaled(context, h, 1, added, scale);
  }
};

class FeedForward {
 public:
  FeedForward() = default;
  // Takes post_attention_layernorm, mlp.* and post_feedforward_layernorm of a layer, as far as it
  // has them. Its errors are the reader's.
  FeedForward(WeightReader& reader, const ModelConfig& config, const LayerSpec& layer);

  bool exists() const { return spec_.kind != FeedForwardKind::kNone; }
  bool has_state() const { return spec_.token_shift; }
  // activations.h += f(norm(h)), or what else FeedForwardSpec and LayerSpec say. where: of its
  // state, if it has one.
  void Forward(DeviceContext& context, const BatchSequences& seqs, const LayerState* where,
               const LayerActivations& activations) const;
  size_t bytes() const;

 private:
  void NormAndShift(DeviceContext& context, const BatchSequences& seqs, const LayerState* where,
                    TensorView h, TensorView x) const;

  FeedForwardSpec spec_;
  Norm norm_, post_norm_;
  float residual_scale_ = 1;
  Buffer shift_;  // [d_model] float, of a token shift
  Linear inner_;  // gated: [2 width, d_model], gate first; else [width, d_model]
  Linear outer_;  // [d_model, width], times the residual's scale if no norm comes between
};

}  // namespace ovq
