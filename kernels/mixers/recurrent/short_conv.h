// Short convolution: every channel through a filter of its own over its newest inputs, then silu.
// With u [n_rows, width], weight [width][taps] and bias [width]:
//   y_t[c] = silu(bias[c] + sum_j weight[c][j] u_{t-taps+1+j}[c])        u_s = 0 for s < 0
// The last tap meets the current row. A session keeps its newest taps - 1 rows of u, row s at s mod
// (taps - 1).
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/mixers/mixer.h"

namespace ovq {

inline constexpr int64_t kMaxConvTaps = 64;

// The newest rows of a session, float [taps - 1][width]; taps at least 2.
StateField ShortConvField(int64_t width, int taps);

// Filters in the device's memory, those of several tensors side by side. Without a weight every
// channel is taken as it is.
struct ShortConvFilters {
  int taps = 1;
  int64_t width = 0;    // filters
  Buffer weight, bias;  // float [taps][width]; float [width], or nothing
};
// Reads of each part `leaf`.weight [rows, 1, taps] and, with has_bias, `leaf`.bias [rows]. Errors
// are spec.weights'.
ShortConvFilters TakeShortConv(const MixerSpec& spec, std::initializer_list<WeightPart> parts,
                               int taps, bool has_bias);

struct ShortConv {
  const float* u;  // [n_rows, width], rows u_stride apart
  int64_t u_stride;
  int64_t width;
  int taps;
  int64_t n_filters;    // a multiple of width: filter f is over channel f mod width
  const float* weight;  // [taps][n_filters]; null: taps is 1, y = silu(u)
  const float* bias;    // [n_filters], or null
  size_t newest;        // of the field, from a session's base; not read where taps is 1
  float* y;             // [n_rows, n_filters], packed, not u's memory
};

// All rows of a step; the sessions then hold their last ones.
void Convolve(DeviceContext& context, const StepSeqs& seqs, const ShortConv& conv);

}  // namespace ovq
