// Family olmo_hybrid of transformers: gated delta nets with norms before their parts, and softmax
// attention with norms after them, with or without RoPE. Defaults are those of transformers' code.
#include <string>

#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

absl::Status ReadOlmoHybrid(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({100352, 3840, 32, 30, 0, 0}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6);
  config.post_norm = config.norm;
  const auto attention = reader.Attention<kernels::FullConfig>();
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = kernels::HeadNorm::kRms;
  input.norms_all_heads = true;
  input.norm_eps = config.norm.eps;
  reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names,
                 {.may_be_null = true, .types = kUsualRopes});
  reader.ReadMixer(*attention);
  const kernels::Attrs& fields = config_file.fields;
  int64_t n_heads = 30;  // if it is wrong, no layer's tensors are known
  file.Int("num_attention_heads", n_heads, 1, 4096);
  const int64_t n_key_heads = Peek(fields, "linear_num_key_heads", n_heads, kMaxHiddenSize);
  const int64_t key_dim = 3 * config.hidden_size / (4 * n_key_heads);
  const auto gdn = reader.GatedDeltaNet({n_key_heads, n_heads, key_dim, /*value_dim=*/0});
  gdn->fields.norm_eps = 1e-5f;  // of the gated norm, fixed in that code
  gdn->fields.negative_eigenvalues = true;
  gdn->names.push_back({"allow_neg_eigval", "linear_allow_neg_eigval"});
  reader.ReadMixer(*gdn);
  const int last = config.n_layers - 1;
  reader.AddLayers(
      "layer_types",
      {{"linear_attention", "gated_delta_net", gdn},
       {"full_attention", "full_attention", attention}},
      [last](int i) { return i % 4 == 3 || (i == last && last < 3) ? 1 : 0; },
      file.IntOr("intermediate_size", 11008, 1, kMaxHiddenSize));
  for (LayerSpec& layer : config.layers) {
    layer.norm_after = layer.type == "full_attention";
    layer.norm_before = !layer.norm_after;
  }
  return reader.Done();
}

std::vector<TensorInFile> OlmoHybridTensor(const ModelConfig& config, const TensorName& name,
                                           const kernels::Shape& shape) {
  if (name.layer < 0 || config.layers[name.layer].type != "gated_delta_net") {
    constexpr Renamed kAttention[] = {{"post_mixer_layernorm.", "post_attention_layernorm."}};
    return {{name.As(kAttention), shape}};
  }
  // Leaf names as released, as the authors' converters write them, and as the library holds them.
  constexpr Renamed kReleased[] = {{"self_attn.", "linear_attn."}};
  constexpr Renamed kConverted[] = {{"input_layernorm.", "attention_layer_norm."},
                                    {"post_attention_layernorm.", "feedforward_layer_norm."},
                                    {"self_attn.o_proj.", "linear_attn.out_proj."},
                                    {"self_attn.o_norm.", "linear_attn.norm."}};
  std::vector<TensorInFile> places = {{name.As(kReleased), shape}, {name.As(kConverted), shape}};
  const std::string conv = name.With("linear_attn.conv1d.weight");
  if (name.leaf.ends_with("_conv1d.weight")) {
    places.push_back(GatedDeltaNetPart(config, name, conv, shape));
  }
  return places;
}

}  // namespace

const Family kOlmoHybrid = {.model_type = "olmo_hybrid",
                            .read = ReadOlmoHybrid,
                            .tensor = OlmoHybridTensor,
                            .is_unused = IsUnusedInHub};

}  // namespace ovq::model
