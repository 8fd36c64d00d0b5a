// Softmax attention over the last `window` tokens (sliding_attention, with RoPE unless config.json
// says otherwise) or over all of them (full_attention, without): OVQ paper eq. 1, appendix 8.2.
#pragma once

#include "kernels/mixers/common/attention.h"

namespace ovq::kernels {

struct FullConfig : AttentionConfig {};
struct SlidingConfig : AttentionConfig {
  SlidingConfig() { input.rope.dims = kAllChannels; }
  int32_t window = 0;  // tokens a query sees, its own included, 1 to 2^24: sliding_window
};
void ReadConfig(const FieldReaders& from, FullConfig& config);
void ReadConfig(const FieldReaders& from, SlidingConfig& config);

// Token t is in slot t % 64 of block t / 64. Sliding: the newest `ring` blocks, block b at index b
// % ring of the fixed part. Full: block b is block b of the growing part.
class SoftmaxAttention : public Attention {
 public:
  AttentionBlocks Blocks(const LayerState& where) const final;

 protected:
  SoftmaxAttention(const StateSpec& spec, const AttentionConfig& config, int32_t window);

 private:
  const int32_t window_;  // tokens a query sees, its own included; 0 = all
  const int32_t ring_;    // blocks kept for a window; 0 = all
};

struct SlidingAttention : SoftmaxAttention {
  using Config = SlidingConfig;
  SlidingAttention(const StateSpec& spec, const Config& config)
      : SoftmaxAttention(spec, config, config.window) {}
};
struct FullAttention : SoftmaxAttention {
  using Config = FullConfig;
  FullAttention(const StateSpec& spec, const Config& config)
      : SoftmaxAttention(spec, config, /*window=*/0) {}
};

}  // namespace ovq::kernels
