// Stochastic rounding of running means to the slots' type, so that they do not stall: x is rounded
// up or down with the probability of its distance. The random bits come from a counter, never from
// a stream (docs/model-format.md).
#pragma once

#include <array>
#include <cstdint>

#include "kernels/common/random.h"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels {

// The inputs of one row's random bits, beside the channel.
struct RoundingKey {
  uint32_t layer;
  uint32_t kv_head;
  uint32_t row;   // centroid
  bool is_value;  // Dv, else Dk
  int64_t chunk;
};

// Channels whose random bits come from one draw.
inline constexpr int kRoundingGroup = 8;

// The 16 random bits of channels [channel, channel + 8), channel a multiple of 8.
constexpr std::array<uint32_t, kRoundingGroup> RoundingBits(const RoundingKey& key,
                                                            uint32_t channel) {
  const auto chunk = static_cast<uint64_t>(key.chunk);
  const std::array<uint32_t, 4> words = Philox4x32(
      {key.row, channel / 8, static_cast<uint32_t>(chunk), static_cast<uint32_t>(chunk >> 32)},
      {key.layer * 2 + (key.is_value ? 1 : 0), key.kv_head});
  return {words[0] & 0xffff, words[0] >> 16, words[1] & 0xffff, words[1] >> 16,
          words[2] & 0xffff, words[2] >> 16, words[3] & 0xffff, words[3] >> 16};
}

// to[i * stride] = x[i] for the n <= 8 channels from `channel` on, a multiple of 8, rounded by key.
// inverse: the row's InverseExponentScale.
template <class T>
constexpr void RoundGroup(const float* x, int n, const RoundingKey& key, uint32_t channel,
                          float inverse, T* to, size_t stride) {
  const std::array<uint32_t, kRoundingGroup> bits = RoundingBits(key, channel);
  for (int i = 0; i < kRoundingGroup; ++i) {
    if (i >= n) continue;
    to[static_cast<size_t>(i) * stride] =
        inverse == 0 ? T{} : Slots<T>::Stochastic(x[i] * inverse, bits[i]);
  }
}
// to = x for all n channels of a row, rounded by key.
template <class T>
void RoundRow(const float* x, int n, const RoundingKey& key, const SlotRow<T>& to) {
  const uint8_t exponent = Slots<T>::Exponent(MagnitudeBits(x, n));
  const float inverse = InverseExponentScale(exponent);
  for (int begin = 0; begin < n; begin += kRoundingGroup) {
    RoundGroup(x + begin, n - begin, key, static_cast<uint32_t>(begin), inverse,
               to.data + int64_t{begin} * to.stride, static_cast<size_t>(to.stride));
  }
  to.SetExponent(exponent);
}

}  // namespace ovq::kernels
