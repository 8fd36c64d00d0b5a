// Short causal convolution: every channel has its own filter over its newest inputs, then silu.
// With u [n_tokens, width], weight [width][conv_size] and bias [width]:
//   y_t[c] = silu(bias[c] + sum_j weight[c][j] u_{t-conv_size+1+j}[c])        u_s = 0 for s < 0
// The last filter element meets the current token. A session keeps its newest conv_size - 1 tokens
// of u, token s at s mod (conv_size - 1).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/common/dispatch.h"
#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

inline constexpr int64_t kMaxConvSize = 64;

// State field for the newest inputs of a session, float [conv_size - 1][width]; conv_size >= 2.
StateField ShortConvField(int64_t width, int conv_size);

// Filters in device memory, of several tensors side by side. Without a weight, y = silu(u).
struct ShortConvFilters {
  Buffer weight, bias;  // float [conv_size][n_filters]; float [n_filters], or empty
};
// Reads `leaf`.weight [filters, 1, conv_size] of each part and, with has_bias, `leaf`.bias
// [filters]. Errors go to spec.weights.
ShortConvFilters LoadShortConv(const MixerSpec& spec, std::span<const WeightPart> parts,
                               int conv_size, bool has_bias);

struct ShortConv {
  const float* u;  // [n_tokens, width], tokens u_stride apart
  int64_t u_stride;
  int64_t width;
  int conv_size;
  int64_t n_filters;    // a multiple of width: filter f reads channel f mod width
  const float* weight;  // [conv_size][n_filters]; null: conv_size is 1, y = silu(u)
  const float* bias;    // [n_filters], or null
  size_t newest;        // offset of the field in a session's state; unused if conv_size is 1
  float* y;             // [n_tokens, n_filters], packed; must not alias u
};

// Convolves all tokens of a batch, then stores the newest inputs in the sessions' states.
void Convolve(DeviceContext& context, const BatchSequences& seqs, const ShortConv& conv);

OVQ_ON_EVERY_DEVICE(Convolve)

}  // namespace ovq::kernels
