#include "kernels/mixers/recurrent/short_conv.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/common/dispatch.h"

namespace ovq {

OVQ_ON_EVERY_DEVICE(Convolve)

StateField ShortConvField(int64_t width, int conv_size) {
  return {"newest_inputs", DType::kF32, {conv_size - 1, width}};
}

ShortConvFilters LoadShortConv(const MixerSpec& spec, std::span<const WeightPart> parts,
                               int conv_size, bool has_bias) {
  ShortConvFilters filters;
  int64_t n_filters = 0;
  for (const WeightPart& part : parts) n_filters += part.rows;
  std::vector<float> weight(static_cast<size_t>(conv_size * n_filters)), bias;
  int64_t first = 0;
  for (const WeightPart& part : parts) {
    const std::string leaf(part.leaf);
    const std::vector<float> rows =
        spec.weights.HostFloats(absl::StrCat(leaf, ".weight"), {part.rows, 1, conv_size});
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto filter = static_cast<int64_t>(i) / conv_size,
                 tap = static_cast<int64_t>(i) % conv_size;
      weight[tap * n_filters + first + filter] = rows[i];
    }
    first += part.rows;
    if (!has_bias) continue;
    const std::vector<float> of_part =
        spec.weights.HostFloats(absl::StrCat(leaf, ".bias"), {part.rows});
    bias.insert(bias.end(), of_part.begin(), of_part.end());
  }
  if (!spec.weights.status().ok()) return filters;
  filters.weight = spec.context.Upload(weight.data(), weight.size() * sizeof(float));
  if (has_bias) filters.bias = spec.context.Upload(bias.data(), bias.size() * sizeof(float));
  return filters;
}

void Convolve(DeviceContext& context, const BatchSequences& seqs, const ShortConv& conv) {
  Check(conv.n_filters % conv.width == 0, "Convolve: filters for every channel alike");
  Check(conv.conv_size >= 1 && conv.conv_size <= kMaxConvSize, "Convolve: conv_size");
  Check(conv.weight != nullptr || (conv.conv_size == 1 && conv.bias == nullptr),
        "Convolve: without weights y = silu(u)");
  Dispatch<ref::Convolve, cpu::Convolve, cuda::Convolve>(context, seqs, conv);
}

namespace ref {
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

}  // namespace ref
}  // namespace ovq
