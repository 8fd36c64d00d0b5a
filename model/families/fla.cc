// Families gated_deltanet and mesa_net of flash-linear-attention (fla-org), with one kind of layer
// throughout. Defaults are those of its code.
#include <memory>
#include <string>

#include "kernels/mixers/gated_delta_net/gated_delta_net.h"
#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/recurrent/matrix_state.h"
#include "model/families/family.h"

namespace ovq::model {
namespace {

// intermediate_size, or two thirds of hidden_ratio times the width, rounded up to a multiple of
// 256.
int64_t FeedForwardWidth(kernels::AttrReader& file, int64_t hidden_size) {
  const int64_t width = file.IntOr("intermediate_size", 0, 1, kMaxHiddenSize);
  if (width > 0) return width;
  const double ratio = file.FloatOr("hidden_ratio", 4.0, 0.01, 1024.0);
  const auto least = static_cast<int64_t>(static_cast<double>(hidden_size) * ratio * 2 / 3);
  return (least + 255) / 256 * 256;
}

// Reads everything but the mixer's fields. Attention layers are refused: no layer type here has
// their rules (1 / sqrt(d), rotary positions, biases).
void ReadDecoder(const ConfigFile& all, kernels::AttrReader& file, std::string layer_type,
                 int64_t default_layers, ModelConfig& config) {
  constexpr std::string_view kActivations[] = {"swish", "silu"};
  ReadSizes(file, 32000, 2048, default_layers, config);
  config.norm.eps = 1e-6f;
  file.Float("norm_eps", config.norm.eps, 0.0, 1.0);
  config.final_norm = config.norm;
  config.tie_word_embeddings = file.BoolOr("tie_word_embeddings", false);
  file.ChoiceOr("hidden_act", kActivations);
  for (const char* field : {"attn", "attnres_block_size"}) {
    if (all.at(field).is_null()) continue;
    file.Fail(field, "expected null: what it asks for is not supported");
  }
  const FeedForwardSpec feed_forward = {FeedForwardKind::kGatedSilu,
                                        FeedForwardWidth(file, config.hidden_size)};
  config.layers.assign(static_cast<size_t>(config.n_layers),
                       LayerSpec{.type = std::move(layer_type), .feed_forward = feed_forward});
}

// Reads the mixer's fields and gives it to all layers. Returns all other errors; if a field is
// wrong, the layers' tensors count as unknown.
absl::Status Done(const kernels::AttrReader& file, const kernels::Attrs& fields,
                  const std::shared_ptr<kernels::MixerConfig>& mixer, ModelConfig& config) {
  kernels::ReadFields(fields, fields, config.hidden_size, *mixer);
  for (LayerSpec& layer : config.layers) {
    layer.mixer = mixer;
    layer.is_wrong = !file.ok();
  }
  return file.status();
}

absl::Status ReadGatedDeltaNet(ConfigFile& all, ModelConfig& config) {
  kernels::AttrReader file(all.fields);
  ReadDecoder(all, file, "gated_delta_net", /*default_layers=*/21, config);
  auto gdn = std::make_shared<kernels::LayerConfig<kernels::GatedDeltaNetConfig>>();
  const int64_t head_dim = Peek(all.fields, "head_dim", 256, kernels::kMaxStateKeyDim);
  const double expansion = file.FloatOr("expand_v", 2.0, 0.0, 1024.0);
  gdn->fields.n_heads = 6;
  gdn->fields.head_dim = 256;
  gdn->fields.value_head_dim = static_cast<int>(static_cast<double>(head_dim) * expansion);
  gdn->fields.conv_size = 4;
  gdn->fields.norm_eps = config.norm.eps;
  gdn->names = {{"num_heads"}, {"num_v_heads"},
                {"head_dim"},  {"value_head_dim", "expand_v", /*is_filled=*/true},
                {"conv_size"}, {"use_short_conv"},
                {"use_gate"},  {"allow_neg_eigval"}};
  return Done(file, all.fields, gdn, config);
}

absl::Status ReadMesaNet(ConfigFile& all, ModelConfig& config) {
  kernels::AttrReader file(all.fields);
  ReadDecoder(all, file, "mesa_net", /*default_layers=*/24, config);
  auto mesa = std::make_shared<kernels::LayerConfig<kernels::MesaConfig>>();
  mesa->fields.n_heads = 16;
  mesa->fields.head_dim = 128;
  mesa->fields.norm_eps = config.norm.eps;
  // Some versions name the gate's field otherwise.
  const char* const gate = all.fields.Has("use_output_gate") ? "use_output_gate" : "use_gate";
  mesa->names = {{"num_heads"}, {"head_dim"},           {"use_output_gate", gate},
                 {"conv_size"}, {"lambda_lower_bound"}, {"max_cg_step_training"}};
  return Done(file, all.fields, mesa, config);
}

constexpr Renamed kNames[] = {
    {"model.embed_tokens.", "model.embeddings."},
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "mlp_norm."},
    {"self_attn.", "attn."},
};

// Gated delta nets from before March 2025 have attn.D, which was never read.
bool IsUnusedInGatedDeltaNet(std::string_view name) {
  return name.starts_with(kLayerPrefix) && name.ends_with(".attn.D");
}

}  // namespace

const Family kFlaGatedDeltaNet = {.model_type = "gated_deltanet",
                                  .read = ReadGatedDeltaNet,
                                  .names = kNames,
                                  .is_unused = IsUnusedInGatedDeltaNet};
const Family kFlaMesaNet = {.model_type = "mesa_net", .read = ReadMesaNet, .names = kNames};

}  // namespace ovq::model
