// Softmax attention over a window of whole chunks and, if there are sinks, the sequence's first
// tokens. From the KVM paper's published code, gptalpha_bswa; equations in README.md.
#pragma once

#include "kernels/mixers/common/attention.h"

namespace ovq::kernels {

struct BlockSlidingConfig : AttentionConfig {
  BlockSlidingConfig() { input.rope.dims = kAllChannels; }
  int32_t chunk_len = 256;    // W, 1 to 2^16
  int32_t window_chunks = 2;  // n, 1 to 256: n_bswa_chunks
  int32_t sink_len = 1;       // first tokens that stay in sight, 0 to 2^16
};
void ReadConfig(const FieldReaders& from, BlockSlidingConfig& config);

// fixed: keys [n_kv_heads][blocks][head_dim][64] and values [n_kv_heads][blocks][64][value_stride]
//        of one run of slots: sinks, then the window
class BlockSlidingAttention final : public Attention {
 public:
  using Config = BlockSlidingConfig;
  BlockSlidingAttention(const StateSpec& spec, const Config& config);
  AttentionBlocks Blocks(const LayerState& where) const override;

 private:
  void Attend(const LayerArgs& layer_args, const AttentionArgs& args) const override;
  std::vector<StateExtent> OwnExtents(const LayerState& where,
                                      const TokenRange& tokens) const override;

  const Config config_;
};

void BlockSlidingAttentionCpu(DeviceContext& context, const AttentionArgs& args);
void BlockSlidingAttentionCuda(DeviceContext& context, const AttentionArgs& args);

}  // namespace ovq::kernels
