// Rows of matrices that products read without a tail.
#pragma once

#include <cstdint>

namespace ovq {

// Partial sums that a sum over a row is made of, on every width of vectors.
inline constexpr int kSumLanes = 16;
// Elements from one row of a state's matrix to the next; those after the row's own are zeros.
constexpr int64_t PaddedWidth(int64_t width) {
  return (width + kSumLanes - 1) / kSumLanes * kSumLanes;
}

}  // namespace ovq
