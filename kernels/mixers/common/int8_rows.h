// Keys and values of a state as int8. A slot's channels are q times a scale that they share, a
// power of two, so that no product with it is ever rounded: a kernel computes the same whether it
// applies the scale before a sum or after. In a block of 64 slots the channels lie as in other
// types, followed by 64 exponents, one byte per slot. The scale is 2^(exponent - 127); that of a
// slot never written is 0. (OCP's MX formats share a scale in the same way.)
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/common/tensor.h"
#include "kernels/mixers/state.h"

namespace ovq {

struct Int8 {
  int8_t q;
};
constexpr float ToFloat(Int8 x) { return x.q; }

template <class T>
inline constexpr bool kHasExponents = false;
template <>
inline constexpr bool kHasExponents<Int8> = true;

// Exponents: of scale 1, which types without scales use; the largest of a finite row; and that of a
// row with a channel that is not finite, whose channels are all 0 times infinity.
inline constexpr uint8_t kUnitExponent = 127, kMaxExponent = 249, kBrokenExponent = 255;
inline constexpr int kMostInt8 = 127;

constexpr float ExponentScale(uint8_t exponent) {
  return std::bit_cast<float>(uint32_t{exponent} << 23);
}

// Channels of a block, counting the exponents of an int8 block as one more.
constexpr int64_t BlockChannels(DType dtype, int64_t channels) {
  return channels + (dtype == DType::kI8 ? 1 : 0);
}
constexpr size_t BlockBytes(DType dtype, int64_t channels) {
  return static_cast<size_t>(kBlockSlots * BlockChannels(dtype, channels)) * DTypeBytes(dtype);
}
// The exponents [64] of a block with that many channels (values: with padding).
inline const uint8_t* BlockExponents(const Int8* block, int64_t channels) {
  return reinterpret_cast<const uint8_t*>(block) + kBlockSlots * channels;
}
inline uint8_t* BlockExponents(Int8* block, int64_t channels) {
  return reinterpret_cast<uint8_t*>(block) + kBlockSlots * channels;
}
// The scale of a slot, in a block with that many channels.
template <class T>
constexpr float ScaleAt([[maybe_unused]] const T* block, [[maybe_unused]] int channels,
                        [[maybe_unused]] int slot) {
  if constexpr (kHasExponents<T>) {
    return ExponentScale(static_cast<uint8_t>(block[kBlockSlots * channels + slot].q));
  }
  return 1;
}

// The exponent of the smallest scale with which a row whose largest magnitude is `largest` fits in
// [-127, 127]. Rows below 2^-120 become zeros. `largest` holds the bits of the magnitude, above
// those of infinity for NaN.
constexpr uint8_t ExponentFor(uint32_t largest) {
  constexpr uint32_t kInfinity = 0x7f800000, kMantissa = 0x7fffff, k127Of64 = 0x7e0000;
  if (largest >= kInfinity) return kBrokenExponent;
  const uint32_t exponent = largest >> 23, up = (largest & kMantissa) > k127Of64 ? 1 : 0;
  return exponent <= 6 ? 0 : static_cast<uint8_t>(exponent - 6 + up);
}
// The bits of a channel's magnitude, and of the largest magnitude of a row times factor.
constexpr uint32_t MagnitudeBits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffff; }
constexpr uint32_t MagnitudeBits(const float* row, int n, float factor = 1) {
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = MagnitudeBits(row[i] * factor);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
// 1 / scale: a row times this becomes q. 0 for rows that are zeros or not finite.
constexpr float InverseExponentScale(uint8_t exponent) {
  return exponent == 0 || exponent == kBrokenExponent
             ? 0.0f
             : ExponentScale(static_cast<uint8_t>(2 * kUnitExponent - exponent));
}

// q of a scaled channel (x / scale), to nearest, ties to even.
constexpr Int8 NearestInt8(float scaled) {
  constexpr float kUnits = 0x1.8p23f;  // floats of this size are integers
  return {static_cast<int8_t>(std::bit_cast<int32_t>(scaled + kUnits) -
                              std::bit_cast<int32_t>(kUnits))};
}
// Rounds up or down with the probability of the distance: adds 16 random bits below the binary
// point.
constexpr Int8 StochasticInt8(float scaled, uint32_t random16) {
  // Rounds down to a multiple of 2^-16; exact, as |scaled| is below 2^7 and a shift rounds down.
  const float parts = scaled * 65536.0f;
  auto whole = static_cast<int32_t>(parts);
  if (static_cast<float>(whole) > parts) --whole;
  return {static_cast<int8_t>((whole + static_cast<int32_t>(random16)) >> 16)};
}

// to[i * stride] = row[i] times factor, rounded to nearest; returns the row's exponent.
inline uint8_t StoreNearest(const float* row, int n, float factor, Int8* to, size_t stride) {
  const uint8_t exponent = ExponentFor(MagnitudeBits(row, n, factor));
  const float inverse = InverseExponentScale(exponent);
  for (int i = 0; i < n; ++i) {
    to[static_cast<size_t>(i) * stride] =
        inverse == 0 ? Int8{0} : NearestInt8(row[i] * factor * inverse);
  }
  return exponent;
}

}  // namespace ovq
