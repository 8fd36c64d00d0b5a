#include "model/config.h"

#include <algorithm>

#include "base/status_macros.h"
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

absl::StatusOr<kernels::MixerState> MakeMixerState(const ModelConfig& config, int i,
                                                   kernels::DType kv_dtype,
                                                   kernels::Device device) {
  return kernels::FindMixer(config.layers[i].type)->state(config.state_spec(i, kv_dtype, device));
}

absl::StatusOr<std::vector<kernels::MixerState>> LayerStates(const ModelConfig& config,
                                                             kernels::DType kv_dtype,
                                                             kernels::Device device) {
  std::vector<kernels::MixerState> states;
  for (int i = 0; i < config.n_layers; ++i) {
    ASSIGN_OR_RETURN(kernels::MixerState state, MakeMixerState(config, i, kv_dtype, device));
    state.name = config.layers[i].type;
    states.push_back(std::move(state));
  }
  for (const LayerSpec& layer : config.layers) {
    if (layer.feed_forward.token_shift)
      states.push_back(kernels::TokenShiftState(config.hidden_size));
  }
  return states;
}

}  // namespace ovq::model
