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
  const bool is_narrow =
      weights_dtype == kernels::DType::kBF16 || quantization.method != QuantizationMethod::kNone;
  return is_narrow ? kernels::DType::kBF16 : kernels::DType::kF32;
}

size_t ModelConfig::embedding_bytes() const {
  return static_cast<size_t>(vocab_size * hidden_size) * kernels::DTypeBytes(weights_dtype);
}

int64_t ModelConfig::short_rope_tokens() const {
  int64_t tokens = 0;
  for (const LayerSpec& layer : layers) {
    const kernels::AttentionConfig* const attention =
        layer.mixer ? layer.mixer->attention() : nullptr;
    if (attention != nullptr) tokens = std::max(tokens, attention->input.rope.short_tokens);
  }
  return tokens;
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
