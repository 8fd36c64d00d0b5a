// KvmFold: what the CPU and CUDA share when a chunk leaves the window: addresses, the sums of a
// slot and what attention reads of it.
#pragma once

#include <cmath>
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
  const KvmArgs& args;
  FullChunk chunk;
  const AttentionBlocks& blocks = args.blocks;
  const KvmRule& config = args.config;
  const KvmParts& parts = args.parts;

  constexpr int d() const { return blocks.shape.head_dim; }
  constexpr int dv() const { return blocks.shape.value_head_dim; }
  constexpr int32_t n_tokens() const { return blocks.wave_span; }
  constexpr int32_t n_new() const { return chunk.n_next - chunk.n_old; }
  constexpr bool is_first() const { return chunk.n_old == 0; }
  // Some but not all tokens are appended; the existing slots decide which.
  constexpr bool selects() const { return !is_first() && n_new() > 0 && n_new() < n_tokens(); }
  // The number of protected slots; at least one slot stays free to merge into.
  constexpr int32_t sinks() const {
    return config.sink_len < chunk.n_next ? config.sink_len : chunk.n_next - 1;
  }

  // The key and value of a slot or of a window token: channels are 64 elements apart in keys,
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
  constexpr float& Length(int32_t slot) const {
    return parts.lengths.At<float>(chunk.session, chunk.kv_head,
                                   slot / kBlockSlots)[slot % kBlockSlots];
  }

  // The factor of token i's key or value in the slot that it becomes or merges into.
  constexpr float Gate(int32_t i, bool is_value, bool appends) const {
    const bool merges = is_value ? config.gate_values : config.gate_keys;
    const bool applies = !appends     ? merges
                         : is_first() ? config.gate_first
                                      : merges && config.gate_appends;
    return applies && config.gated() ? *parts.gates.At<float>(chunk.session, chunk.kv_head, i)
                                     : 1.0f;
  }
  // The length that token i's slot begins with.
  constexpr float FirstLength(int32_t i) const {
    if (!config.value_lengths) return 1;
    const T* value = WindowValue(i);
    const float gate = is_first() ? 1.0f : Gate(i, /*is_value=*/true, /*appends=*/true);
    float squares = 0;
    for (int c = 0; c < dv(); ++c) {
      const float x = ToFloat(value[c]) * gate;
      squares += x * x;
    }
    return std::sqrt(squares);
  }

  // LayerNorm of x(0), x(1), ..., x(d - 1): its statistics, and one channel.
  struct Norm {
    float mean, scale;
  };
  template <class Fn>
  constexpr Norm MeasureNorm(Fn&& x) const {
    const auto n = static_cast<float>(d());
    float sum = 0, squares = 0;
    for (int c = 0; c < d(); ++c) sum += x(c);
    const float mean = sum / n;
    for (int c = 0; c < d(); ++c) {
      const float apart = x(c) - mean;
      squares += apart * apart;
    }
    return {mean, 1 / std::sqrt(squares / n + kKvmNormEps)};
  }
  constexpr float Normed(float x, const Norm& norm, int c) const {
    return (x - norm.mean) * norm.scale * args.weights.norm_weight[c] + args.weights.norm_bias[c];
  }
  constexpr Norm SlotNorm(int32_t slot) const {
    const T* sums = Key(parts.key_sums, slot);
    return MeasureNorm([&](int c) { return ToFloat(sums[c * kBlockSlots]); });
  }

  constexpr int key_groups() const { return (d() + kRoundingGroup - 1) / kRoundingGroup; }
  // Groups of channels of a slot: keys first, then values.
  constexpr int groups() const {
    return key_groups() + (dv() + kRoundingGroup - 1) / kRoundingGroup;
  }
  // Sums one group of a slot's channels: token i alone, or i, next(i), ..., added to the slot's old
  // sum. key(i, c): channel c of a token's key, without its temperature, normalised.
  template <class KeyFn, class NextFn>
  constexpr void SumGroup(int32_t i, int32_t slot, bool appends, int group, KeyFn&& key,
                          NextFn&& next) const {
    const bool is_value = group >= key_groups();
    const int from = (is_value ? group - key_groups() : group) * kRoundingGroup;
    const int left = (is_value ? dv() : d()) - from, stride = is_value ? 1 : kBlockSlots;
    T* sums =
        (is_value ? Value(parts.value_sums, slot) : Key(parts.key_sums, slot)) + from * stride;
    float sum[kRoundingGroup] = {};
    for (int c = 0; c < kRoundingGroup; ++c) {
      if (!appends && c < left) sum[c] = ToFloat(sums[c * stride]);
    }
    for (; i >= 0; i = appends ? -1 : next(i)) {
      const float gate = Gate(i, is_value, appends);
      const T* value = WindowValue(i) + from;
      for (int c = 0; c < kRoundingGroup; ++c) {
        if (c < left) sum[c] += (is_value ? ToFloat(value[c]) : key(i, from + c)) * gate;
      }
    }
    const RoundingKey rounding = {.layer = static_cast<uint32_t>(blocks.layer),
                                  .kv_head = static_cast<uint32_t>(chunk.kv_head),
                                  .row = static_cast<uint32_t>(slot),
                                  .is_value = is_value,
                                  .chunk = chunk.chunk};
    RoundGroup(sum, left, rounding, static_cast<uint32_t>(from), 1, sums,
               static_cast<size_t>(stride));
  }

  // Recomputes a slot's key and value, which attention reads, from its sums and its length. A value
  // is sum / norm * length with value lengths, else sum / length.
  constexpr void Refresh(int32_t slot) const {
    const Norm of_key = SlotNorm(slot);
    const T* sums = Key(parts.key_sums, slot);
    T* key = Key(blocks.dictionary_keys.place, slot);
    const float temp = args.weights.state_temps[chunk.kv_head];
    for (int c = 0; c < d(); ++c) {
      const float normed = Normed(ToFloat(sums[c * kBlockSlots]), of_key, c);
      key[c * kBlockSlots] = Slots<T>::Nearest(normed * temp);
    }
    const T* of_values = Value(parts.value_sums, slot);
    T* to = Value(blocks.dictionary_values.place, slot);
    float squares = 0;
    for (int c = 0; c < dv(); ++c) squares += ToFloat(of_values[c]) * ToFloat(of_values[c]);
    const float root = std::sqrt(squares), length = Length(slot),
                norm = root > kKvmSmallestNorm ? root : kKvmSmallestNorm;
    for (int c = 0; c < dv(); ++c) {
      const float sum = ToFloat(of_values[c]),
                  value = config.value_lengths ? sum / norm * length : sum / length;
      to[c] = Slots<T>::Nearest(config.round_values ? ToFloat(RoundToBF16(value)) : value);
    }
  }
};

}  // namespace ovq::kernels
