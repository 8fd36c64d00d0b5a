// Short convolution on the CPU:
//   y_t[f] = silu(bias[f] + sum_j weight[j][f] u_{t-conv_size+1+j}[f mod width])
// as a chain of fused multiply-adds from the oldest input to the newest; u [n_tokens, width],
// y [n_tokens, n_filters].
#include <algorithm>

#include "kernels/common/highway_targets.h"
#include "kernels/common/parallel.h"
#include "kernels/mixers/recurrent/short_conv.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/recurrent/short_conv_cpu.cc"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/ops/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

// Convolves one token's channels [begin, end) with the filters from `first`. inputs[conv_size]:
// tokens of u, the oldest first.
void ConvolveToken(const ShortConv& conv, const float* const* inputs, int64_t begin, int64_t end,
                   int64_t first, float* y) {
  ForEachVector(end - begin, [&](int64_t i, int64_t m) HWY_ATTR {
    const int64_t channel = begin + i, filter = first + channel;
    if (conv.weight == nullptr) return Store(Silu(Load(inputs[0] + channel, m)), m, y + filter);
    V sum = conv.bias ? Load(conv.bias + filter, m) : hn::Zero(d);
    for (int j = 0; j < conv.conv_size; ++j) {
      sum = hn::MulAdd(Load(conv.weight + j * conv.n_filters + filter, m),
                       Load(inputs[j] + channel, m), sum);
    }
    Store(Silu(sum), m, y + filter);
  });
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {
namespace {

HWY_EXPORT(ConvolveToken);

// Channels of one task, which handles all tokens of a sequence.
constexpr int64_t kTaskChannels = 256;

void ConvolveChannels(const ShortConv& conv, const BatchSequences& seqs, int s, int64_t begin,
                      int64_t end) {
  const int64_t n_kept_tokens = conv.conv_size - 1, start = seqs.start_pos[s],
                n_tokens = seqs.sequence_length(s);
  const float* tokens = conv.u + seqs.token_begin[s] * conv.u_stride;
  float* kept =
      n_kept_tokens == 0 ? nullptr : reinterpret_cast<float*>(seqs.state[s] + conv.newest);
  const float* inputs[kMaxConvSize];
  for (int64_t token = 0; token < n_tokens; ++token) {
    for (int64_t j = 0; j < conv.conv_size; ++j) {
      const int64_t before = n_kept_tokens - j;
      inputs[j] = token >= before ? tokens + (token - before) * conv.u_stride
                                  : kept + (start + token + j) % n_kept_tokens * conv.width;
    }
    float* y = conv.y + (seqs.token_begin[s] + token) * conv.n_filters;
    for (int64_t first = 0; first < conv.n_filters; first += conv.width) {
      HWY_DYNAMIC_DISPATCH(ConvolveToken)(conv, inputs, begin, end, first, y);
    }
  }
  for (int64_t token = std::max<int64_t>(0, n_tokens - n_kept_tokens); token < n_tokens; ++token) {
    std::copy_n(tokens + token * conv.u_stride + begin, end - begin,
                kept + (start + token) % n_kept_tokens * conv.width + begin);
  }
}

}  // namespace

namespace cpu {

void Convolve(DeviceContext& context, const BatchSequences& seqs, const ShortConv& conv) {
  const int64_t parts = (conv.width + kTaskChannels - 1) / kTaskChannels;
  ParallelFor(context, seqs.n_seqs() * parts, [&](int64_t task, int) {
    const int64_t begin = task % parts * kTaskChannels;
    ConvolveChannels(conv, seqs, static_cast<int>(task / parts), begin,
                     std::min(begin + kTaskChannels, conv.width));
  });
}

}  // namespace cpu
}  // namespace ovq::kernels
#endif  // HWY_ONCE
