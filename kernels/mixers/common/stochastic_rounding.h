// Stochastic rounding of running means to bfloat16 or int8, so that they do not stall: x is rounded
// up or down with the probability of its distance. The random bits come from a counter, never from
// a stream (docs/model-format.md).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/common/random.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/common/int8_rows.h"

namespace ovq {

// The inputs of one row's random bits, beside the channel.
struct RoundingKey {
  uint32_t layer;
  uint32_t kv_head;
  uint32_t row;   // centroid
  bool is_value;  // Dv, else Dk
  int64_t chunk;
};

// Adds 16 random bits below the kept ones and truncates; exact if x is a bfloat16 already.
constexpr BF16 RoundStochastic(float x, uint32_t random16) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return RoundToBF16(x);  // infinity and NaN
  return {static_cast<uint16_t>((bits + random16) >> 16)};
}

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
constexpr void RoundGroup(const float* x, int n, const RoundingKey& key, uint32_t channel, BF16* to,
                          size_t stride) {
  const std::array<uint32_t, kRoundingGroup> bits = RoundingBits(key, channel);
  for (int i = 0; i < kRoundingGroup; ++i) {
    if (i < n) to[static_cast<size_t>(i) * stride] = RoundStochastic(x[i], bits[i]);
  }
}
constexpr void RoundGroup(const float* x, int n, const RoundingKey&, uint32_t, float* to,
                          size_t stride) {
  for (int i = 0; i < kRoundingGroup; ++i) {
    if (i < n) to[static_cast<size_t>(i) * stride] = x[i];
  }
}

// inverse: 1 / scale of the row (InverseExponentScale).
constexpr void RoundGroup(const float* x, int n, const RoundingKey& key, uint32_t channel, Int8* to,
                          size_t stride, float inverse) {
  const std::array<uint32_t, kRoundingGroup> bits = RoundingBits(key, channel);
  for (int i = 0; i < kRoundingGroup; ++i) {
    if (i >= n) continue;
    to[static_cast<size_t>(i) * stride] =
        inverse == 0 ? Int8{0} : StochasticInt8(x[i] * inverse, bits[i]);
  }
}

// to[i * stride] = x[i] for all n channels of a row, rounded by key; returns the row's exponent.
template <class T>
uint8_t RoundRow(const float* x, int n, const RoundingKey& key, T* to, size_t stride) {
  for (int begin = 0; begin < n; begin += kRoundingGroup) {
    RoundGroup(x + begin, n - begin, key, static_cast<uint32_t>(begin),
               to + static_cast<size_t>(begin) * stride, stride);
  }
  return kUnitExponent;
}
inline uint8_t RoundRow(const float* x, int n, const RoundingKey& key, Int8* to, size_t stride) {
  const uint8_t exponent = ExponentFor(MagnitudeBits(x, n));
  const float inverse = InverseExponentScale(exponent);
  for (int begin = 0; begin < n; begin += kRoundingGroup) {
    RoundGroup(x + begin, n - begin, key, static_cast<uint32_t>(begin),
               to + static_cast<size_t>(begin) * stride, stride, inverse);
  }
  return exponent;
}

}  // namespace ovq
