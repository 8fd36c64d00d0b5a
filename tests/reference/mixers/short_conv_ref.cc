// The reference of the short convolution (short_conv.h), in double.
#include <cmath>

#include "kernels/mixers/recurrent/short_conv.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

// u of channel c at position s of a sequence, from the batch or from the session's state.
double InputAt(const BatchSequences& seqs, const ShortConv& conv, int sequence, int64_t s,
               int64_t c) {
  if (s < 0) return 0;
  const int64_t start = seqs.start_pos[sequence];
  if (s >= start) return conv.u[(seqs.token_begin[sequence] + s - start) * conv.u_stride + c];
  const auto* newest = reinterpret_cast<const float*>(seqs.state[sequence] + conv.newest);
  return newest[s % (conv.conv_size - 1) * conv.width + c];
}

double ConvolveFilter(const BatchSequences& seqs, const ShortConv& conv, int sequence, int64_t t,
                      int64_t filter) {
  double sum = conv.bias ? conv.bias[filter] : 0;
  for (int j = 0; j < conv.conv_size; ++j) {
    const double weight = conv.weight ? conv.weight[j * conv.n_filters + filter] : 1;
    sum += weight * InputAt(seqs, conv, sequence, t - conv.conv_size + 1 + j, filter % conv.width);
  }
  return sum / (1 + std::exp(-sum));
}

}  // namespace

void Convolve(DeviceContext&, const BatchSequences& seqs, const ShortConv& conv) {
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    for (int64_t t = seqs.start_pos[s]; t < seqs.end_pos(s); ++t) {
      const int64_t token = seqs.token_begin[s] + t - seqs.start_pos[s];
      for (int64_t filter = 0; filter < conv.n_filters; ++filter) {
        conv.y[token * conv.n_filters + filter] =
            static_cast<float>(ConvolveFilter(seqs, conv, s, t, filter));
      }
    }
    if (conv.conv_size == 1) continue;
    auto* newest = reinterpret_cast<float*>(seqs.state[s] + conv.newest);
    for (int64_t t = seqs.start_pos[s]; t < seqs.end_pos(s); ++t) {
      for (int64_t c = 0; c < conv.width; ++c) {
        newest[t % (conv.conv_size - 1) * conv.width + c] =
            static_cast<float>(InputAt(seqs, conv, s, t, c));
      }
    }
  }
}

const ReferenceOf<cpu::Convolve> kConvolve = Convolve;

}  // namespace ovq::kernels::ref
