#include "model/config.h"

#include <algorithm>

#include "kernels/mixers/common/attention.h"
#include "kernels/mixers/common/token_shift.h"

namespace ovq::model {

const char* TokenizerName(TokenizerKind kind) {
  constexpr const char* kNames[] = {"", "bytes", "sentencepiece", "bpe"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<std::string> ModelConfig::layer_types() const {
  std::vector<std::string> types;
  for (const LayerSpec& layer : layers) types.push_back(layer.type);
  return types;
}

kernels::DType ModelConfig::default_dtype() const {
  return weights_dtype == kernels::DType::kBF16 ? kernels::DType::kBF16 : kernels::DType::kF32;
}

bool ModelConfig::gives_first_values(int i) const {
  return std::ranges::any_of(layers, [i](const LayerSpec& layer) {
    const kernels::AttentionConfig* const attention =
        layer.mixer ? layer.mixer->attention() : nullptr;
    return attention != nullptr && attention->input.value_layer == i;
  });
}

kernels::StateSpec ModelConfig::state_spec(int i, kernels::DType kv_dtype,
                                           kernels::Device device) const {
  return {.config = *layers[i].mixer,
          .d_model = hidden_size,
          .kv_dtype = kv_dtype,
          .device = device,
          .slot_shares = layers[i].slot_shares};
}

}  // namespace ovq::model
