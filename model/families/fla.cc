// Families gated_deltanet, kda and mesa_net of flash-linear-attention (fla-org): one kind of
// recurrent layer, and softmax attention in the layers that "attn" lists. Defaults are those of its
// code.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/gated_delta_net/gated_delta_net.h"
#include "kernels/mixers/mesa_net/mesa_net.h"
#include "kernels/mixers/recurrent/matrix_state.h"
#include "kernels/mixers/softmax/softmax.h"
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

// Reads everything but the mixer's fields.
void ReadDecoder(const ConfigFile& all, kernels::AttrReader& file, std::string layer_type,
                 int64_t default_layers, ModelConfig& config) {
  constexpr std::string_view kActivations[] = {"swish", "silu"};
  ReadSizes(file, 32000, 2048, default_layers, config);
  config.norm.eps = 1e-6f;
  file.Float("norm_eps", config.norm.eps, 0.0, 1.0);
  config.final_norm = config.norm;
  config.tie_word_embeddings = file.BoolOr("tie_word_embeddings", false);
  file.ChoiceOr("hidden_act", kActivations);
  if (!all.at("attnres_block_size").is_null()) {
    file.Fail("attnres_block_size", "expected null: what it asks for is not supported");
  }
  const FeedForwardSpec feed_forward = {FeedForwardKind::kGatedSilu,
                                        FeedForwardWidth(file, config.hidden_size)};
  config.layers.assign(static_cast<size_t>(config.n_layers),
                       LayerSpec{.type = std::move(layer_type), .feed_forward = feed_forward});
}

// Softmax attention of the layers that an object `section`, named `name`, lists from 0: all
// channels of a head are turned, biases are those of q, k and v.
template <class Config>
std::shared_ptr<kernels::LayerConfig<Config>> FlaAttention(const kernels::Attrs& fields,
                                                           const std::string& name,
                                                           const ModelConfig& config) {
  auto attention = std::make_shared<kernels::LayerConfig<Config>>();
  kernels::AttentionInput& input = attention->fields.input;
  const int64_t n_heads = Peek(fields, "num_heads", 1, config.hidden_size);
  attention->fields.shape.head_dim = static_cast<int>(config.hidden_size / n_heads);
  input.norm = kernels::HeadNorm::kNone;
  input.output_has_bias = false;
  input.rope.dims = kernels::kAllChannels;
  attention->names = {{"num_attention_heads", "num_heads"},
                      {"num_key_value_heads", "num_kv_heads"},
                      {"head_dim", "num_heads", /*is_filled=*/true},
                      {"attention_bias", "qkv_bias"},
                      {"sliding_window", "window_size"},
                      {"rope_theta"}};
  attention->section = name;
  kernels::ReadFields(fields, fields, config.hidden_size, *attention);
  return attention;
}

// Gives the layers of one object of "attn" to its attention.
void ReadAttentionLayers(const nlohmann::json& object, const std::string& name,
                         kernels::AttrReader& file, ModelConfig& config) {
  if (!object.is_object()) return file.Fail(name, "expected an object");
  kernels::Attrs fields;
  FillAttrs(object, fields, name + ".");
  const bool slides = fields.Has("window_size");
  std::shared_ptr<kernels::MixerConfig> attention;
  if (slides) {
    attention = FlaAttention<kernels::SlidingConfig>(fields, name + ".", config);
  } else {
    attention = FlaAttention<kernels::FullConfig>(fields, name + ".", config);
  }
  const nlohmann::json layers = object.value("layers", nlohmann::json());
  if (!layers.is_array()) return file.Fail(name + ".layers", "expected a list of layers");
  for (const nlohmann::json& entry : layers) {
    if (!entry.is_number_unsigned() || entry.get<uint64_t>() >= config.layers.size()) {
      file.Fail(name + ".layers", absl::StrCat("expected layers in [0, ", config.n_layers - 1,
                                               "], got ", entry.dump()));
      continue;
    }
    LayerSpec& layer = config.layers[entry.get<size_t>()];
    if (layer.mixer != nullptr) {
      file.Fail(name + ".layers", absl::StrCat("layer ", entry.dump(), " is named twice"));
    }
    layer.type = slides ? "sliding_attention" : "full_attention";
    layer.mixer = attention;
  }
}

// Reads the mixer's fields and gives it to all layers that "attn" gives no attention: null, an
// object, or a list of objects. Returns all other errors; if a field is wrong, the layers' tensors
// count as unknown.
absl::Status Done(const ConfigFile& all, kernels::AttrReader& file,
                  const std::shared_ptr<kernels::MixerConfig>& mixer, ModelConfig& config) {
  const nlohmann::json attn = all.at("attn");
  if (attn.is_array()) {
    for (size_t i = 0; i < attn.size(); ++i) {
      ReadAttentionLayers(attn[i], absl::StrCat("attn[", i, "]"), file, config);
    }
  } else if (!attn.is_null()) {
    ReadAttentionLayers(attn, "attn", file, config);
  }
  kernels::ReadFields(all.fields, all.fields, config.hidden_size, *mixer);
  for (LayerSpec& layer : config.layers) {
    if (layer.mixer == nullptr) layer.mixer = mixer;
    layer.is_wrong = !file.ok();
  }
  return file.status();
}

// The fields that gated delta nets and Kimi Delta Attention share.
std::shared_ptr<kernels::LayerConfig<kernels::GatedDeltaNetConfig>> DeltaNet(
    const ConfigFile& all, kernels::AttrReader& file, const ModelConfig& config, int n_heads,
    int default_head_dim, double default_expansion) {
  auto gdn = std::make_shared<kernels::LayerConfig<kernels::GatedDeltaNetConfig>>();
  const int64_t head_dim = Peek(all.fields, "head_dim", default_head_dim, kernels::kMaxStateKeyDim);
  const double expansion = file.FloatOr("expand_v", default_expansion, 0.0, 1024.0);
  gdn->fields.n_heads = n_heads;
  gdn->fields.head_dim = default_head_dim;
  gdn->fields.value_head_dim = static_cast<int>(static_cast<double>(head_dim) * expansion);
  gdn->fields.conv_size = 4;
  gdn->fields.norm_eps = config.norm.eps;
  gdn->names = {{"num_heads"},       {"num_v_heads"},
                {"head_dim"},        {"value_head_dim", "expand_v", /*is_filled=*/true},
                {"conv_size"},       {"use_short_conv"},
                {"allow_neg_eigval"}};
  return gdn;
}

absl::Status ReadGatedDeltaNet(ConfigFile& all, ModelConfig& config) {
  kernels::AttrReader file(all.fields);
  ReadDecoder(all, file, "gated_delta_net", /*default_layers=*/21, config);
  const auto gdn = DeltaNet(all, file, config, /*n_heads=*/6, /*default_head_dim=*/256, 2);
  gdn->names.push_back({"use_gate"});
  return Done(all, file, gdn, config);
}

absl::Status ReadKda(ConfigFile& all, ModelConfig& config) {
  kernels::AttrReader file(all.fields);
  ReadDecoder(all, file, "gated_delta_net", /*default_layers=*/24, config);
  const auto kda = DeltaNet(all, file, config, /*n_heads=*/16, /*default_head_dim=*/128, 1);
  kernels::GatedDeltaNetConfig& fields = kda->fields;
  fields.decay_rank = fields.gate_rank = fields.value_head_dim;
  fields.gate_bias = true;
  fields.gate_activation = kernels::GatedDeltaNetConfig::GateActivation::kSigmoid;
  kda->names.push_back({"decay_lower_bound", "lower_bound"});
  return Done(all, file, kda, config);
}

absl::Status ReadMesaNet(ConfigFile& all, ModelConfig& config) {
  kernels::AttrReader file(all.fields);
  ReadDecoder(all, file, "mesa_net", /*default_layers=*/24, config);
  auto mesa = std::make_shared<kernels::LayerConfig<kernels::MesaConfig>>();
  mesa->fields.n_heads = 16;
  mesa->fields.head_dim = 128;
  mesa->fields.norm_eps = config.norm.eps;
  // Some versions name the gate's field otherwise.
  const char* const gate = Either(all.fields, "use_output_gate", "use_gate");
  mesa->names = {{"num_heads"}, {"head_dim"},           {"use_output_gate", gate},
                 {"conv_size"}, {"lambda_lower_bound"}, {"max_cg_step_training"}};
  return Done(all, file, mesa, config);
}

constexpr Renamed kFlaNames[] = {
    {"self_attn.f_a_proj.", "attn.f_proj.0."},    {"self_attn.f_b_proj.", "attn.f_proj.1."},
    {"self_attn.g_a_proj.", "attn.g_proj.0."},    {"self_attn.g_b_proj.", "attn.g_proj.1."},
    {"model.embed_tokens.", "model.embeddings."}, {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "mlp_norm."},   {"self_attn.", "attn."},
};

// Gated delta nets from before March 2025 have attn.D, which was never read.
bool IsUnusedInGatedDeltaNet(std::string_view name) {
  return name.starts_with(kLayerPrefix) && name.ends_with(".attn.D");
}

}  // namespace

const Family kFlaGatedDeltaNet = {.model_type = "gated_deltanet",
                                  .read = ReadGatedDeltaNet,
                                  .names = kFlaNames,
                                  .is_unused = IsUnusedInGatedDeltaNet};
const Family kFlaKda = {.model_type = "kda", .read = ReadKda, .names = kFlaNames};
const Family kFlaMesaNet = {.model_type = "mesa_net", .read = ReadMesaNet, .names = kFlaNames};

}  // namespace ovq::model
