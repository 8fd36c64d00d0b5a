// KvmFold: what the CPU and CUDA share when a chunk leaves the window, i.e. addresses and a token's
// contribution to a row.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/common/stochastic_rounding.h"
#include "kernels/mixers/kvm/kvm.h"

namespace ovq::kernels {

inline constexpr float kKvmNormEps = 1e-5f;
inline constexpr float kKvmSmallestNorm = 1e-12f;

// One head of a session whose oldest chunk leaves the window. T: type of keys, values and sums.
template <class T>
struct KvmFold {
  const AttentionBlocks& blocks;
  const KvmConfig& config;
  const KvmParts& parts;
  FullChunk chunk;

  constexpr int d() const { return blocks.shape.head_dim; }
  constexpr int dv() const { return blocks.shape.value_head_dim; }
  constexpr int32_t n_tokens() const { return blocks.wave_span; }
  constexpr int32_t n_new() const { return chunk.n_next - chunk.n_old; }
  constexpr bool is_first() const { return chunk.n_old == 0; }
  // Some but not all tokens are appended; the existing rows decide which.
  constexpr bool selects() const { return !is_first() && n_new() > 0 && n_new() < n_tokens(); }
  // The number of protected rows; at least one row stays free to merge into.
  constexpr int32_t sinks() const {
    return config.sink_len < chunk.n_next ? config.sink_len : chunk.n_next - 1;
  }

  // The key and value of a row or of a window token: channels are 64 elements apart in keys,
  // adjacent in values.
  constexpr T* Key(const StatePlace& place, int32_t i) const {
    return place.At<T>(chunk.session, chunk.kv_head, i / kBlockSlots) + i % kBlockSlots;
  }
  constexpr T* Value(const StatePlace& place, int32_t i) const {
    return place.At<T>(chunk.session, chunk.kv_head, i / kBlockSlots) +
           i % kBlockSlots * ValueStride(dv());
  }
  constexpr const T* WindowKey(int32_t i) const { return Key(blocks.recent_keys.place, i); }
  constexpr const T* WindowValue(int32_t i) const { return Value(blocks.recent_values.place, i); }
  constexpr float& Length(int32_t row) const {
    return parts.lengths.At<float>(chunk.session, chunk.kv_head,
                                   row / kBlockSlots)[row % kBlockSlots];
  }

  // The factor of token i's key or value in the row that it becomes or merges into.
  constexpr float Gate(int32_t i, bool is_value, bool appends) const {
    const bool merges = is_value ? config.gate_values : config.gate_keys;
    const bool applies = !appends     ? merges
                         : is_first() ? config.gate_first
                                      : merges && config.gate_appends;
    return applies && config.gated() ? *parts.gates.At<float>(chunk.session, chunk.kv_head, i)
                                     : 1.0f;
  }
  // The gate of the value whose length becomes that of token i's row.
  constexpr float LengthGate(int32_t i) const {
    return is_first() ? 1.0f : Gate(i, /*is_value=*/true, /*appends=*/true);
  }

  // One channel of a row's value as attention reads it: sum / norm * length with value lengths,
  // else sum / length.
  constexpr T SlotValue(float sum, float norm, float length) const {
    const float value = config.value_lengths ? sum / norm * length : sum / length;
    return Slots<T>::Nearest(config.round_values ? ToFloat(RoundToBF16(value)) : value);
  }

  constexpr RoundingKey Rounding(int32_t row, bool is_value) const {
    return {.layer = static_cast<uint32_t>(blocks.layer),
            .kv_head = static_cast<uint32_t>(chunk.kv_head),
            .row = static_cast<uint32_t>(row),
            .is_value = is_value,
            .chunk = chunk.chunk};
  }
};

}  // namespace ovq::kernels
