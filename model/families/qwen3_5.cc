// Family of Qwen3.5's dense text models: model_type "qwen3_5", with the text model's fields in an
// object of their own, and "qwen3_5_text" of transformers. Gated delta nets and gated softmax
// attention. Defaults are those of transformers' code.
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/family.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr HubLayer kLayers[] = {{"linear_attention", "gated_delta_net"},
                                {"full_attention", "full_attention"}};

std::shared_ptr<kernels::MixerConfig> Attention(HubReader& reader, const ModelConfig& config) {
  auto attention = reader.Attention<kernels::FullConfig>();
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = kernels::HeadNorm::kRms;
  input.norm_eps = config.norm.eps;
  input.norm_weight = kernels::NormWeightKind::kOnePlus;
  input.gate = true;
  attention->names.push_back({"output_gate_bias", "attention_bias"});
  reader.SetRope(kernels::RopeSpec::Layout::kHalves, *attention, {.partial = 0.25});
  reader.ReadMixer(*attention);
  return attention;
}

absl::Status Read(ConfigFile& config_file, ModelConfig& config) {
  const nlohmann::json& json = config_file.json;
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({248320, 4096, 32, 16, 4, 256}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6, {.weight = kernels::NormWeightKind::kOnePlus});
  if (!file.BoolOr("attn_output_gate", true)) {
    file.Fail("attn_output_gate", "expected true: every published layer has the gate");
  }
  const auto dense = json.find("mlp_only_layers");
  if (dense != json.end() && !dense->is_null() && !dense->empty()) {
    file.Fail("mlp_only_layers", "expected none: what it asks for is not supported");
  }
  const auto gdn = reader.GatedDeltaNet({16, 32, 128, 128});
  reader.ReadMixer(*gdn);
  const auto attention = Attention(reader, config);
  const int64_t every = file.IntOr("full_attention_interval", 4, 1, kMaxLayers);
  const auto types = reader.LayerTypes("layer_types", kLayers, [every](int i) {
    return std::string((i + 1) % every == 0 ? "full_attention" : "linear_attention");
  });
  reader.AddLayers(types, kLayers, {gdn, attention},
                   file.IntOr("intermediate_size", 12288, 1, kMaxHiddenSize));
  return reader.Done();
}

// q_proj holds each head's query rows followed by its gate rows.
TensorInFile HalfPerHead(const ModelConfig& config, const LayerTensor& tensor,
                         const kernels::Shape& shape) {
  const int64_t head_dim = config.layers[tensor.layer].mixer->attention()->shape.head_dim;
  const int64_t row = shape.rank() == 2 ? shape[1] : 1;  // row length of a weight; 1 for a bias
  const bool is_gate = tensor.leaf.starts_with("self_attn.g_proj.");
  constexpr Renamed kGate[] = {{"self_attn.g_proj.", "self_attn.q_proj."}};
  return {tensor.As(kGate),
          shape.rank() == 2 ? kernels::Shape{2 * shape[0], row} : kernels::Shape{2 * shape[0]},
          head_dim * row, is_gate ? head_dim * row : 0, 2 * head_dim * row};
}

TensorInFile InLayer(const ModelConfig& config, const LayerTensor& tensor,
                     const kernels::Shape& shape) {
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
                                 const kernels::Shape& shape) {
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

}  // namespace ovq::model
