// Softmax attention over the last `window` tokens (sliding_attention, with RoPE unless config.json
// says otherwise) or over all of them (full_attention, without): OVQ paper eq. 1, appendix 8.2.
#pragma once

#include "kernels/mixers/common/attend.h"

namespace ovq {

// Token t is in slot t % 64 of block t / 64. Sliding: the newest `ring` blocks, block b at index b
// % ring of the fixed part. Full: block b is block b of the growing part.
struct SoftmaxAttention : Attention {
  SoftmaxAttention(const StateSpec& spec, AttrReader& model, bool sliding);

  void Attend(const LayerArgs& args, const AttentionTensors& tokens) const;
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange& tokens) const;
  AttentionBlocks Blocks(const LayerState& where) const;

  int32_t window = 0;  // tokens a query sees, its own included; 0 = all
  int32_t ring = 0;    // blocks kept for a window; 0 = all
  DType dtype;
};

struct SlidingAttention : SoftmaxAttention {
  static constexpr bool kRopeByDefault = true;
  SlidingAttention(const StateSpec& spec, AttrReader& model, AttrReader&)
      : SoftmaxAttention(spec, model, /*sliding=*/true) {}
};
struct FullAttention : SoftmaxAttention {
  FullAttention(const StateSpec& spec, AttrReader& model, AttrReader&)
      : SoftmaxAttention(spec, model, /*sliding=*/false) {}
};

}  // namespace ovq
