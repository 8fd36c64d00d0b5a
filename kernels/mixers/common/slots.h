// The types of a state's keys and values. Slots<T> is all that kernels know of the type T: float,
// BF16, or Int8, whose slots have a scale each. A kernel is a template on T, and VisitSlots chooses
// it. A new type is a Slots here and its vectors in slots-inl.h.
//
// A block holds 64 slots: keys [head_dim][64], values [64][value_stride]. In types with scales, all
// of one byte, 64 exponents follow, one for each slot. A slot's channels are their elements times
// 2^(exponent - 127), a power of two, so that no product with it is ever rounded: a kernel computes
// the same whether it applies the scale before a sum or after. The scale of a slot never written is
// 0. (OCP's MX formats share a scale in the same way.)
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "kernels/common/tensor.h"
#include "kernels/mixers/state.h"

namespace ovq::kernels {

// Exponents: of scale 1, which types without scales use; the largest of a finite row; and that of a
// row with a channel that is not finite, whose channels are all 0 times infinity.
inline constexpr uint8_t kUnitExponent = 127, kMaxExponent = 249, kBrokenExponent = 255;

constexpr float ExponentScale(uint8_t exponent) {
  return std::bit_cast<float>(uint32_t{exponent} << 23);
}
// 1 / scale: a row times this becomes elements. 0 for rows that are zeros or not finite.
constexpr float InverseExponentScale(uint8_t exponent) {
  return exponent == 0 || exponent == kBrokenExponent
             ? 0.0f
             : ExponentScale(static_cast<uint8_t>(2 * kUnitExponent - exponent));
}
// The bits of a channel's magnitude, above those of infinity for NaN, and of the largest magnitude
// of a row times factor.
constexpr uint32_t MagnitudeBits(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffff; }
constexpr uint32_t MagnitudeBits(const float* row, int n, float factor = 1) {
  uint32_t largest = 0;
  for (int i = 0; i < n; ++i) {
    const uint32_t bits = MagnitudeBits(row[i] * factor);
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

// kDType:       names T in configs.
// kScaled:      slots have scales.
// kExactInBF16: elements are exact in bfloat16, so tensor cores can read them.
// Exponent:     of a row whose largest magnitude has these bits.
// Nearest:      the element of a channel times InverseExponentScale, to nearest, ties to even.
// Stochastic:   likewise, up or down with the probability of the distance, by 16 random bits.
template <class T>
struct Slots;

template <>
struct Slots<float> {
  static constexpr DType kDType = DType::kF32;
  static constexpr bool kScaled = false, kExactInBF16 = false;
  static constexpr uint8_t Exponent(uint32_t) { return kUnitExponent; }
  static constexpr float Nearest(float x) { return x; }
  static constexpr float Stochastic(float x, uint32_t) { return x; }
};

template <>
struct Slots<BF16> {
  static constexpr DType kDType = DType::kBF16;
  static constexpr bool kScaled = false, kExactInBF16 = true;
  static constexpr uint8_t Exponent(uint32_t) { return kUnitExponent; }
  static constexpr BF16 Nearest(float x) { return RoundToBF16(x); }
  // Adds the random bits below the kept ones and truncates; exact if x is a bfloat16 already.
  static constexpr BF16 Stochastic(float x, uint32_t random16) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7f800000u) == 0x7f800000u) return RoundToBF16(x);  // infinity and NaN
    return {static_cast<uint16_t>((bits + random16) >> 16)};
  }
};

struct Int8 {
  int8_t q;
};
constexpr float ToFloat(Int8 x) { return x.q; }

template <>
struct Slots<Int8> {
  static constexpr DType kDType = DType::kI8;
  static constexpr bool kScaled = true, kExactInBF16 = true;
  // The smallest scale with which the row fits in [-127, 127]. Rows below 2^-120 become zeros.
  static constexpr uint8_t Exponent(uint32_t largest) {
    constexpr uint32_t kInfinity = 0x7f800000, kMantissa = 0x7fffff, k127Of64 = 0x7e0000;
    if (largest >= kInfinity) return kBrokenExponent;
    const uint32_t exponent = largest >> 23, up = (largest & kMantissa) > k127Of64 ? 1 : 0;
    return exponent <= 6 ? 0 : static_cast<uint8_t>(exponent - 6 + up);
  }
  static constexpr Int8 Nearest(float x) {
    constexpr float kUnits = 0x1.8p23f;  // floats of this size are integers
    return {
        static_cast<int8_t>(std::bit_cast<int32_t>(x + kUnits) - std::bit_cast<int32_t>(kUnits))};
  }
  // Adds the random bits below the binary point.
  static constexpr Int8 Stochastic(float x, uint32_t random16) {
    // Rounds down to a multiple of 2^-16; exact, as |x| is below 2^7 and a shift rounds down.
    const float parts = x * 65536.0f;
    auto whole = static_cast<int32_t>(parts);
    if (static_cast<float>(whole) > parts) --whole;
    return {static_cast<int8_t>((whole + static_cast<int32_t>(random16)) >> 16)};
  }
  // Four elements that lie in a word. A byte biased by 128, as the low mantissa bits of 2^23, is
  // that many units above 2^23.
  static constexpr std::array<float, 4> Widen(uint32_t word) {
    constexpr float kZero = 8388608.0f + 128.0f;
    const uint32_t biased = word ^ 0x80808080u;
    std::array<float, 4> wide = {};
    for (int i = 0; i < 4; ++i) {
      wide[i] = std::bit_cast<float>(0x4b000000u | (biased >> (8 * i) & 0xff)) - kZero;
    }
    return wide;
  }
};

// Types that a kernel may be limited to: VisitSlots(dtype, []<Unscaled T>(Slots<T>) {...}).
template <class T>
concept Unscaled = !Slots<T>::kScaled;
template <class T>
concept ExactInBF16 = Slots<T>::kExactInBF16;

template <class Fn, class T, class... Others>
constexpr auto VisitAmong(DType dtype, Fn& fn) {
  if constexpr (!std::is_invocable_v<Fn&, Slots<T>>) {
    return VisitAmong<Fn, Others...>(dtype, fn);
  } else {
    if constexpr ((... || std::is_invocable_v<Fn&, Slots<Others>>)) {
      if (dtype != Slots<T>::kDType) return VisitAmong<Fn, Others...>(dtype, fn);
    }
    Check(dtype == Slots<T>::kDType, "slots have a type that their kernel takes");
    return fn(Slots<T>());
  }
}
template <class... T>
struct SlotTypes {
  static constexpr std::array kDTypes = {Slots<T>::kDType...};
  template <class Fn>
  static constexpr auto Visit(DType dtype, Fn& fn) {
    return VisitAmong<Fn, T...>(dtype, fn);
  }
};
using AllSlots = SlotTypes<float, BF16, Int8>;

// Returns fn(Slots<T>()) for the T of this dtype, one of those that fn takes.
template <class Fn>
constexpr auto VisitSlots(DType dtype, Fn fn) {
  return AllSlots::Visit(dtype, fn);
}
constexpr bool IsScaled(DType dtype) {
  return VisitSlots(dtype, []<class T>(Slots<T>) { return Slots<T>::kScaled; });
}
constexpr bool IsExactInBF16(DType dtype) {
  return VisitSlots(dtype, []<class T>(Slots<T>) { return Slots<T>::kExactInBF16; });
}

// Channels of a value with its padding, which is zeros.
constexpr int kValueAlignment = 16;
constexpr int ValueStride(int value_head_dim) {
  return (value_head_dim + kValueAlignment - 1) / kValueAlignment * kValueAlignment;
}

// Channels of a block, counting the exponents as one more.
constexpr int64_t BlockChannels(DType dtype, int64_t channels) {
  return channels + (IsScaled(dtype) ? 1 : 0);
}
constexpr size_t BlockBytes(DType dtype, int64_t channels) {
  return static_cast<size_t>(kBlockSlots * BlockChannels(dtype, channels)) * DTypeBytes(dtype);
}

// A slot's key or value: channel i is element data[i * stride] times the scale.
template <class T>
struct SlotRow {
  T* data;
  int stride;
  T* exponent = nullptr;  // only with scales

  static constexpr bool kScaled = Slots<std::remove_const_t<T>>::kScaled;
  constexpr float scale() const {
    if constexpr (kScaled) return ExponentScale(std::bit_cast<uint8_t>(*exponent));
    return 1;
  }
  constexpr void SetExponent([[maybe_unused]] uint8_t value) const {
    if constexpr (kScaled) *exponent = std::bit_cast<T>(value);
  }
  constexpr float operator[](int i) const { return ToFloat(data[int64_t{i} * stride]) * scale(); }
  constexpr void Load(int n, float* to) const {
    const float by = scale();
    for (int i = 0; i < n; ++i) to[i] = ToFloat(data[int64_t{i} * stride]) * by;
  }
};
// A slot of a block of keys, and of one of values.
template <class T>
constexpr SlotRow<T> KeyRow(T* block, int head_dim, int slot) {
  return {block + slot, kBlockSlots, block + kBlockSlots * head_dim + slot};
}
template <class T>
constexpr SlotRow<T> ValueRow(T* block, int value_stride, int slot) {
  return {block + int64_t{slot} * value_stride, 1, block + kBlockSlots * value_stride + slot};
}

// The element of a channel in a row with this InverseExponentScale.
template <class T>
constexpr T NearestElement(float x, float inverse) {
  return inverse == 0 ? T{} : Slots<T>::Nearest(x * inverse);
}
// to = x[n] times factor, rounded to nearest.
template <class T>
constexpr void StoreNearest(const float* x, int n, float factor, const SlotRow<T>& to) {
  const uint8_t exponent = Slots<T>::Exponent(MagnitudeBits(x, n, factor));
  const float inverse = InverseExponentScale(exponent);
  for (int i = 0; i < n; ++i) {
    to.data[int64_t{i} * to.stride] = NearestElement<T>(x[i] * factor, inverse);
  }
  to.SetExponent(exponent);
}

}  // namespace ovq::kernels
