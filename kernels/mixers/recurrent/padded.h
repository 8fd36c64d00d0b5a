// Padded row width of matrices in recurrent states, so that products need no tail loop.
#pragma once

#include <cstdint>

namespace ovq::kernels {

// Number of partial sums of a sum over a row, on every vector width.
inline constexpr int kSumLanes = 16;
// Elements from one row of a state's matrix to the next; the padding is zeros.
constexpr int64_t PaddedWidth(int64_t width) {
  return (width + kSumLanes - 1) / kSumLanes * kSumLanes;
}

}  // namespace ovq::kernels
