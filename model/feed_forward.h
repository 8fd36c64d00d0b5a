// A decoder layer's second half: FeedForwardSpec.
#pragma once

#include "kernels/mixers/mixer.h"
#include "model/config.h"
#include "model/norm.h"

namespace ovq {

class FeedForward {
 public:
  FeedForward() = default;
  // Takes post_attention_layernorm and mlp.* of a layer. Its errors are the reader's.
  FeedForward(WeightReader& reader, const ModelConfig& config, const FeedForwardSpec& spec);

  bool exists() const { return spec_.kind != FeedForwardKind::kNone; }
  bool has_state() const { return spec_.token_shift; }
  // h[n_rows, d_model] += f(norm(h)); x [n_rows, d_model] is scratch of the compute dtype. where:
  // of its state, if it has one.
  void Forward(DeviceContext& context, const StepSeqs& seqs, const LayerState* where, TensorView h,
               TensorView x) const;
  size_t bytes() const;

 private:
  void NormAndShift(DeviceContext& context, const StepSeqs& seqs, const LayerState* where,
                    TensorView h, TensorView x) const;

  FeedForwardSpec spec_;
  Norm norm_;
  Buffer shift_;  // [d_model] float, of a token shift
  Linear inner_;  // gated: [2 width, d_model], gate first; else [width, d_model]
  Linear outer_;  // [d_model, width], times the residual's scale
};

}  // namespace ovq
