// Element types, shapes and non-owning tensor views. Row-major, last dimension contiguous.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/check.h"

namespace ovq::kernels {

// kI8 occurs only in states: slots of int8 with one scale each (kernels/mixers/common/slots.h).
enum class DType : uint8_t { kF32, kBF16, kF16, kI32, kU32, kI8 };

constexpr size_t DTypeBytes(DType type) {
  if (type == DType::kI8) return 1;
  return type == DType::kBF16 || type == DType::kF16 ? 2 : 4;
}
constexpr const char* DTypeName(DType type) {
  switch (type) {
    case DType::kF32:
      return "F32";
    case DType::kBF16:
      return "BF16";
    case DType::kF16:
      return "F16";
    case DType::kI32:
      return "I32";
    case DType::kU32:
      return "U32";
    case DType::kI8:
      return "I8";
  }
  return "?";
}

// bfloat16: the upper half of a float32.
struct BF16 {
  uint16_t bits;
};
constexpr float ToFloat(BF16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
}
constexpr float ToFloat(float x) { return x; }

// Round to nearest, ties to even; NaN stays NaN.
constexpr BF16 RoundToBF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <class T>
constexpr T FromFloat(float x);
template <>
constexpr float FromFloat<float>(float x) {
  return x;
}
template <>
constexpr BF16 FromFloat<BF16>(float x) {
  return RoundToBF16(x);
}

// IEEE binary16 to float32, exact.
float HalfToFloat(uint16_t bits);

// Up to four dimensions; unused ones are absent.
class Shape {
 public:
  static constexpr int kMaxRank = 4;
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<int64_t> dims) {
    Check(dims.size() <= kMaxRank, "tensor rank is at most 4");
    for (int64_t dim : dims) dims_[rank_++] = dim;
  }
  constexpr int rank() const { return rank_; }
  constexpr int64_t operator[](int i) const { return dims_[i]; }
  constexpr int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= dims_[i];
    return product;
  }
  constexpr bool operator==(const Shape&) const = default;
  std::string ToString() const;  // "[3, 64]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

// A non-owning view. Read-only memory (a mapped weight file) is never written through it.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape;

  size_t bytes() const { return static_cast<size_t>(shape.elements()) * DTypeBytes(dtype); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// Rows [first, first + n) of a matrix [rows, width].
inline TensorView Rows(const TensorView& x, int64_t first, int64_t n) {
  const size_t row_bytes = static_cast<size_t>(x.shape[1]) * DTypeBytes(x.dtype);
  return {x.as<std::byte>() + static_cast<size_t>(first) * row_bytes, x.dtype, {n, x.shape[1]}};
}

// Activations in float32 or bfloat16; the other type's pointer is null.
struct Activations {
  float* f32 = nullptr;
  BF16* bf16 = nullptr;
};
inline Activations ToActivations(const TensorView& y) {
  if (y.dtype == DType::kF32) return {.f32 = y.as<float>()};
  return {.bf16 = y.as<BF16>()};
}

// Element i of an F32, BF16 or F16 tensor as float32, exact.
inline float FloatAt(const TensorView& tensor, int64_t i) {
  switch (tensor.dtype) {
    case DType::kF32:
      return tensor.as<const float>()[i];
    case DType::kBF16:
      return ToFloat(tensor.as<const BF16>()[i]);
    default:
      Check(tensor.dtype == DType::kF16, "a float tensor");
      return HalfToFloat(tensor.as<const uint16_t>()[i]);
  }
}
std::vector<float> ToFloats(const TensorView& tensor);

}  // namespace ovq::kernels
