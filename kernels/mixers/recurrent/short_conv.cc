#include "kernels/mixers/recurrent/short_conv.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ovq::kernels {

StateField ShortConvField(int64_t width, int conv_size) {
  return {"newest_inputs", DType::kF32, {conv_size - 1, width}};
}

ShortConvFilters LoadShortConv(const MixerSpec& spec, std::span<const WeightPart> parts,
                               int conv_size, bool has_bias) {
  ShortConvFilters filters;
  const int64_t n_filters = TotalRows(parts);
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
  filters.weight = spec.context.Upload(weight);
  if (has_bias) filters.bias = spec.context.Upload(bias);
  return filters;
}

void Convolve(DeviceContext& context, const BatchSequences& seqs, const ShortConv& conv) {
  Check(conv.n_filters % conv.width == 0, "Convolve: filters for every channel alike");
  Check(conv.conv_size >= 1 && conv.conv_size <= kMaxConvSize, "Convolve: conv_size");
  Check(conv.weight != nullptr || (conv.conv_size == 1 && conv.bias == nullptr),
        "Convolve: without weights y = silu(u)");
  Dispatch<cpu::Convolve, cuda::Convolve>(context, seqs, conv);
}

}  // namespace ovq::kernels
