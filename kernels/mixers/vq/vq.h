// Attention over a trained codebook (Transformer-VQ in linear form; OVQ paper eq. 3-6): every key
// is replaced by its nearest code, so the state is one count and one mean value per code.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/attention.h"

namespace ovq::kernels {

// The last, unfinished block of 64 tokens waits beside the means, so that a prompt is prefilled in
// blocks; in exact arithmetic any block length gives the same answer.
inline constexpr int kVqChunk = kBlockSlots;

// The layer's codes are the dictionary's keys. A pending key is replaced by its code, which
// best_slot names, in a block that each batch fills. A code with count 0 has a bias of -infinity.
struct VqAttentionArgs : AttentionArgs {
  const float* half_norm;  // [n_kv_heads][blocks * 64]: |code|^2 / 2
};
// Pointer to a code; channel c is at [c * 64].
constexpr const float* CodeAt(const AttentionBlocks& blocks, int kv_head, int32_t code) {
  return blocks.dictionary_keys.At<float>(nullptr, 0, kv_head, code / kBlockSlots) +
         code % kBlockSlots;
}

struct VqConfig : AttentionConfig {
  int64_t n_codes = 0;  // of a key/value head, 1 to 2^20: codebook_size
};
void ReadConfig(const FieldReaders& from, VqConfig& config);

// The state is float32 whatever the server's dtype, because it never grows.
class VqAttention final : public Attention {
 public:
  using Config = VqConfig;
  VqAttention(const StateSpec& spec, const VqConfig& config);
  AttentionBlocks Blocks(const LayerState& where) const override;

 private:
  void LoadOwn(const MixerSpec& spec) override;
  void Attend(const LayerArgs& layer_args, const AttentionArgs& args) const override;
  std::vector<StateExtent> OwnExtents(const LayerState& where,
                                      const TokenRange& tokens) const override;

  const int64_t n_codes_;
  // In the device's memory, padded with zeros:
  Buffer codes_;      // float [n_kv_heads][blocks][head_dim][64]
  Buffer half_norm_;  // float [n_kv_heads][blocks * 64]
};

void VqAttentionCpu(DeviceContext& context, const VqAttentionArgs& args);
void VqAttentionCuda(DeviceContext& context, const VqAttentionArgs& args);

}  // namespace ovq::kernels
