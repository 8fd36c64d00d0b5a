// Online vector-quantized attention: softmax over a growing dictionary of key/value centroids and
// the tokens of the unfinished chunk. OVQ paper equations 15 and 17-19; details in
// docs/model-format.md and README.md.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/dictionary.h"

namespace ovq::kernels {

// The update on CUDA keeps 12 bytes per key of the chunk in shared memory; every supported GPU has
// at least 99 KiB.
inline constexpr int kMaxCudaChunkLen = 8192;

// Eq. 17: n(t) = floor(t N / (t + N)), n(0) = 0; exact for every position and N < 2^31. As
// t N / (t + N) = N - N^2 / (t + N), 64 bits are enough.
constexpr int64_t CentroidsAt(int64_t t, int64_t max_centroids) {
  const auto n = static_cast<uint64_t>(max_centroids);
  const uint64_t sum = static_cast<uint64_t>(t) + n;
  return sum == 0 ? 0 : max_centroids - static_cast<int64_t>((n * n + sum - 1) / sum);
}
// The law of eq. 17, or with min_state_size min(t, N), evaluated after the last full chunk. A
// session's slot cap is its N.
Growth GrowsByChunk(int chunk_len, int64_t default_slot_cap, bool min_state_size = false);

struct OvqConfig : DictionaryConfig {};
void ReadConfig(const FieldReaders& from, OvqConfig& config);

// fixed: pending keys [n_kv_heads][blocks of the chunk][head_dim][64] and values, best_score and
//        best_slot [n_kv_heads][chunk_len]
class OvqAttention final : public DictionaryAttention {
 public:
  using Config = OvqConfig;
  OvqAttention(const StateSpec& spec, const OvqConfig& config);
  AttentionBlocks Blocks(const LayerState& where) const override;

 private:
  void LoadOwn(const MixerSpec& spec) override;

  Buffer delta_scale_;  // float [n_heads] in the device's memory: factor that makes a key a query
};

}  // namespace ovq::kernels
