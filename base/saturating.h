// Saturating sums and products of sizes: the largest number in place of overflow.
#pragma once

#include <concepts>
#include <limits>

namespace ovq {

template <std::unsigned_integral T>
constexpr T SaturatingAdd(T a, T b) {
  T sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<T>::max() : sum;
}

template <std::unsigned_integral T>
constexpr T SaturatingMultiply(T a, T b) {
  T product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<T>::max() : product;
}

}  // namespace ovq
