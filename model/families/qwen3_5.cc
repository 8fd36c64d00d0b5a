// Family of Qwen3.5's dense text models: model_type "qwen3_5", with the text model's fields in an
// object of their own, and "qwen3_5_text" of transformers. Gated delta nets and gated softmax
// attention. Defaults are those of transformers' code.
#include <string>

#include "absl/strings/str_cat.h"
#include "model/families/family.h"
#include "model/families/hub.h"

namespace ovq {
namespace {

constexpr HubLayer kLayers[] = {{"linear_attention", "gated_delta_net"},
                                {"full_attention", "full_attention"}};

void SetMixers(HubReader& reader, const ModelConfig& config, MixerFields& mixer) {
  AttrReader& file = reader.file();
  reader.SetAttention(mixer.model);
  mixer.model.Set("rms_norm_eps", double{config.norm.eps});
  mixer.model.Set("qk_norm", std::string("rms"));
  mixer.model.Set("qk_norm_eps", double{config.norm.eps});
  mixer.model.Set("qk_norm_weight", std::string("one_plus"));
  mixer.model.Set("output_gate", true);
  mixer.model.Set("output_gate_bias", file.BoolOr("attention_bias", false));
  reader.SetRope("halves", mixer.model, {.partial = 0.25});
  reader.SetGatedDeltaNet({16, 32, 128, 128}, mixer.sections["gdn"]);
}

absl::Status Read(const nlohmann::json& json, const Attrs& fields, ModelConfig& config) {
  HubReader reader(json, fields, config);
  AttrReader& file = reader.file();
  reader.ReadSizes({248320, 4096, 32, 16, 4, 256}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6, {.weight = NormWeightKind::kOnePlus});
  if (!file.BoolOr("attn_output_gate", true)) {
    file.Fail("attn_output_gate", "expected true: every published layer has the gate");
  }
  const auto dense = json.find("mlp_only_layers");
  if (dense != json.end() && !dense->is_null() && !dense->empty()) {
    file.Fail("mlp_only_layers", "expected none: what it asks for is not supported");
  }
  SetMixers(reader, config, config.mixer_fields.emplace_back());
  const int64_t every = file.IntOr("full_attention_interval", 4, 1, kMaxLayers);
  const auto types = reader.LayerTypes("layer_types", kLayers, [every](int i) {
    return std::string((i + 1) % every == 0 ? "full_attention" : "linear_attention");
  });
  reader.AddLayers(types, kLayers, file.IntOr("intermediate_size", 12288, 1, kMaxHiddenSize));
  return reader.Done();
}

// q_proj holds each head's query rows followed by its gate rows.
TensorInFile HalfPerHead(const ModelConfig& config, const LayerTensor& tensor, const Shape& shape) {
  AttrReader model(config.fields(tensor.layer).model);
  const int64_t head_dim = model.Int("head_dim", 1, kMaxHiddenSize);
  const int64_t row = shape.rank() == 2 ? shape[1] : 1;  // row length of a weight; 1 for a bias
  const bool is_gate = tensor.leaf.starts_with("self_attn.g_proj.");
  constexpr Renamed kGate[] = {{"self_attn.g_proj.", "self_attn.q_proj."}};
  return {tensor.As(kGate), shape.rank() == 2 ? Shape{2 * shape[0], row} : Shape{2 * shape[0]},
          head_dim * row, is_gate ? head_dim * row : 0, 2 * head_dim * row};
}

TensorInFile InLayer(const ModelConfig& config, const LayerTensor& tensor, const Shape& shape) {
  const std::string_view leaf = tensor.leaf;
  if (config.layers[tensor.layer].type != "gated_delta_net") {
    if (leaf.starts_with("self_attn.q_proj.") || leaf.starts_with("self_attn.g_proj.")) {
      return HalfPerHead(config, tensor, shape);
    }
    return {tensor.As({}), shape};
  }
  if (leaf.ends_with("_conv1d.weight")) {
    return GatedDeltaNetPart(config, tensor, tensor.With("linear_attn.conv1d.weight"), shape);
  }
  for (const char* part : {"q_proj.", "k_proj.", "v_proj."}) {
    if (!leaf.starts_with(absl::StrCat("self_attn.", part))) continue;
    return GatedDeltaNetPart(config, tensor, tensor.With("linear_attn.in_proj_qkv.weight"), shape);
  }
  constexpr Renamed kNames[] = {{"self_attn.g_proj.", "linear_attn.in_proj_z."},
                                {"self_attn.a_proj.", "linear_attn.in_proj_a."},
                                {"self_attn.b_proj.", "linear_attn.in_proj_b."},
                                {"self_attn.o_norm.", "linear_attn.norm."},
                                {"self_attn.o_proj.", "linear_attn.out_proj."},
                                {"self_attn.", "linear_attn."}};
  return {tensor.As(kNames), shape};
}

std::vector<TensorInFile> Tensor(const ModelConfig& config, std::string_view name,
                                 const Shape& shape) {
  const LayerTensor tensor = ParseLayerTensor(name);
  return InEitherPrefix(config, tensor.layer < 0 ? TensorInFile{std::string(name), shape}
                                                 : InLayer(config, tensor, shape));
}

// Tensors of multi-token prediction and of vision.
bool IsUnused(std::string_view name) {
  return name.starts_with("mtp.") || name.starts_with("model.visual.") || IsUnusedInHub(name);
}

}  // namespace

const Family kQwen35 = {"qwen3_5", /*is_strict=*/false, Read, Tensor, IsUnused};
const Family kQwen35Text = {"qwen3_5_text", /*is_strict=*/false, Read, Tensor, IsUnused};

}  // namespace ovq
