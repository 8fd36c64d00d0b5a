// Families gated_deltanet and mesa_net of flash-linear-attention (fla-org), with one kind of layer
// throughout. Defaults are those of its code.
#include <string>

#include "model/families/family.h"
#include "model/families/renaming.h"

namespace ovq {
namespace {

constexpr int64_t kMaxHeads = 4096;

// intermediate_size, or two thirds of hidden_ratio times the width, rounded up to a multiple of
// 256.
int64_t FeedForwardWidth(AttrReader& file, int64_t hidden_size) {
  const int64_t width = file.IntOr("intermediate_size", 0, 1, kMaxHiddenSize);
  if (width > 0) return width;
  const double ratio = file.FloatOr("hidden_ratio", 4.0, 0.01, 1024.0);
  const auto least = static_cast<int64_t>(static_cast<double>(hidden_size) * ratio * 2 / 3);
  return (least + 255) / 256 * 256;
}

// Reads everything but the mixer's fields. Attention layers are refused: no layer type here has
// their rules (1 / sqrt(d), rotary positions, biases).
void ReadDecoder(const nlohmann::json& json, AttrReader& file, std::string layer_type,
                 int64_t default_layers, ModelConfig& config) {
  constexpr std::string_view kActivations[] = {"swish", "silu"};
  config.vocab_size = file.IntOr("vocab_size", 32000, 1, kMaxVocab);
  config.hidden_size = file.IntOr("hidden_size", 2048, 1, kMaxHiddenSize);
  config.n_layers =
      static_cast<int>(file.IntOr("num_hidden_layers", default_layers, 1, kMaxLayers));
  config.norm.eps = static_cast<float>(file.FloatOr("norm_eps", 1e-6, 0.0, 1.0));
  config.final_norm = config.norm;
  config.tie_word_embeddings = file.BoolOr("tie_word_embeddings", false);
  file.ChoiceOr("hidden_act", kActivations);
  for (const char* field : {"attn", "attnres_block_size"}) {
    const auto value = json.find(field);
    if (value != json.end() && !value->is_null()) {
      file.Fail(field, "expected null: what it asks for is not supported");
    }
  }
  const FeedForwardSpec feed_forward = {FeedForwardKind::kGatedSilu,
                                        FeedForwardWidth(file, config.hidden_size)};
  config.layers.assign(static_cast<size_t>(config.n_layers),
                       LayerSpec{std::move(layer_type), 0, feed_forward});
}

// Adds the mixer's section to the config.
Attrs& AddSection(const std::string& section, ModelConfig& config) {
  MixerFields& fields = config.mixer_fields.emplace_back();
  fields.model.Set("rms_norm_eps", double{config.norm.eps}, "norm_eps");
  return fields.sections[section];
}

// Returns all errors. If a field is wrong, the layers' tensors count as unknown.
absl::Status Done(const AttrReader& file, ModelConfig& config) {
  for (LayerSpec& layer : config.layers) layer.is_wrong = !file.ok();
  return file.status();
}

absl::Status ReadGatedDeltaNet(const nlohmann::json& json, const Attrs& fields,
                               ModelConfig& config) {
  AttrReader file(fields);
  ReadDecoder(json, file, "gated_delta_net", /*default_layers=*/21, config);
  const int64_t head_dim = file.IntOr("head_dim", 256, 1, kMaxHiddenSize);
  const double expansion = file.FloatOr("expand_v", 2.0, 0.0, 1024.0);
  Attrs& gdn = AddSection("gdn", config);
  gdn.Set("head_dim", head_dim, "head_dim");
  gdn.Set("value_head_dim", static_cast<int64_t>(static_cast<double>(head_dim) * expansion),
          "expand_v");
  gdn.Set("num_heads", file.IntOr("num_heads", 6, 1, kMaxHeads), "num_heads");
  gdn.Set("conv_size", file.IntOr("conv_size", 4, 1, kMaxHiddenSize), "conv_size");
  for (const char* field : {"num_v_heads", "use_gate", "use_short_conv", "allow_neg_eigval"}) {
    fields.CopyTo(gdn, field, field);
  }
  return Done(file, config);
}

absl::Status ReadMesaNet(const nlohmann::json& json, const Attrs& fields, ModelConfig& config) {
  AttrReader file(fields);
  ReadDecoder(json, file, "mesa_net", /*default_layers=*/24, config);
  Attrs& mesa = AddSection("mesa_net", config);
  mesa.Set("num_heads", file.IntOr("num_heads", 16, 1, kMaxHeads), "num_heads");
  mesa.Set("head_dim", file.IntOr("head_dim", 128, 1, kMaxHiddenSize), "head_dim");
  fields.CopyTo(mesa, "use_gate", "use_output_gate");  // some versions' name of the field
  for (const char* field :
       {"use_output_gate", "conv_size", "lambda_lower_bound", "max_cg_step_training"}) {
    fields.CopyTo(mesa, field, field);
  }
  return Done(file, config);
}

constexpr Renamed kGlobal[] = {
    {"model.embed_tokens.", "model.embeddings."},
};
constexpr Renamed kOfLayer[] = {
    {"input_layernorm.", "attn_norm."},
    {"post_attention_layernorm.", "mlp_norm."},
    {"self_attn.", "attn."},
};
std::vector<TensorInFile> Tensor(const ModelConfig&, std::string_view name, const Shape& shape) {
  return {{ReplacePrefix(name, kGlobal, "model.layers.", kOfLayer), shape}};
}

// Gated delta nets from before March 2025 have attn.D, which was never read.
bool IsUnusedInGatedDeltaNet(std::string_view name) {
  return name.starts_with("model.layers.") && name.ends_with(".attn.D");
}
bool IsUnusedInMesaNet(std::string_view) { return false; }

}  // namespace

const Family kFlaGatedDeltaNet = {"gated_deltanet", /*is_strict=*/false, ReadGatedDeltaNet, Tensor,
                                  IsUnusedInGatedDeltaNet};
const Family kFlaMesaNet = {"mesa_net", /*is_strict=*/false, ReadMesaNet, Tensor,
                            IsUnusedInMesaNet};

}  // namespace ovq
