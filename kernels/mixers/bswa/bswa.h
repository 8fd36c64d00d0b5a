// Softmax attention over a window of whole chunks and, if there are sinks, the sequence's first
// tokens. From the KVM paper's published code, gptalpha_bswa; equations in README.md.
#pragma once

#include "kernels/mixers/common/attend.h"

namespace ovq {

// fixed: keys [n_kv_heads][blocks][head_dim][64] and values [n_kv_heads][blocks][64][value_stride]
//        of one run of slots: sinks, then the window
struct BlockSlidingAttention : Attention {
  static constexpr bool kRopeByDefault = true;
  BlockSlidingAttention(const StateSpec& spec, AttrReader& model, AttrReader& section);

  void Attend(const LayerArgs& args, const AttentionTensors& tokens) const;
  std::vector<StateExtent> UndoExtents(const LayerState& where, const TokenRange& tokens) const;

  int32_t chunk_len;      // W
  int32_t window_chunks;  // n
  int32_t sink_len;
  DType dtype;

 private:
  AttentionBlocks Blocks(const LayerState& where) const;
};

void BlockSlidingAttentionCpu(DeviceContext& context, const AttentionArgs& args);
void BlockSlidingAttentionCuda(DeviceContext& context, const AttentionArgs& args);

}  // namespace ovq
