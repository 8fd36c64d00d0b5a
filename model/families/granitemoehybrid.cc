// Family granitemoehybrid of transformers (dense Granite 4.0 hybrids): Mamba-2 layers and a few of
// softmax attention, without positions in published files. Defaults are those of transformers'
// code.
#include <algorithm>
#include <string>
#include <utility>

#include "model/families/family.h"
#include "model/families/hub.h"
#include "model/families/renaming.h"

namespace ovq {
namespace {

constexpr HubLayer kLayers[] = {{"mamba", "mamba2"}, {"attention", "full_attention"}};
constexpr int64_t kMaxExperts = 1 << 20;
constexpr double kMaxMultiplier = 1e6;

void RefuseExperts(AttrReader& file) {
  constexpr int64_t kInCode = 8;  // default of num_local_experts in transformers
  if (file.IntOr("num_local_experts", kInCode, 0, kMaxExperts) == 0) return;
  file.Fail("num_local_experts", "expected 0: mixtures of experts are not supported");
}

void SetAttention(HubReader& reader, Attrs& model) {
  constexpr std::string_view kPositions[] = {"nope", "rope"};
  AttrReader& file = reader.file();
  reader.SetAttention(model);
  model.Set("qk_norm", std::string("none"));
  model.Set("score_scale", file.FloatOr("attention_multiplier", 1, 0, kMaxMultiplier),
            "attention_multiplier");
  if (file.ChoiceOr("position_embedding_type", kPositions) == 1) reader.SetRope("halves", model);
}

Attrs MambaFields(const nlohmann::json& json, const Attrs& fields, AttrReader& file,
                  int64_t hidden_size) {
  Attrs mamba;
  const int64_t n_heads = file.IntOr("mamba_n_heads", 128, 1, kMaxHiddenSize);
  const double expand = file.FloatOr("mamba_expand", 2, 0.001, 1024);
  mamba.Set("num_heads", n_heads, "mamba_n_heads");
  mamba.Set("state_size", file.IntOr("mamba_d_state", 256, 1, kMaxHiddenSize), "mamba_d_state");
  mamba.Set("norm_groups", int64_t{1});
  constexpr std::pair<const char*, const char*> kFields[] = {
      {"mamba_n_groups", "n_groups"},       {"mamba_d_conv", "conv_kernel"},
      {"mamba_conv_bias", "use_conv_bias"}, {"mamba_proj_bias", "use_bias"},
      {"time_step_limit", "dt_limit"},      {"mamba_d_head", "head_dim"}};
  for (const auto& [in_file, name] : kFields) fields.CopyTo(mamba, in_file, name);
  mamba.Set("expand", expand, "mamba_expand");
  if (!fields.Has("mamba_d_head") || json.at("mamba_d_head") == "auto") {
    const auto width = static_cast<int64_t>(expand * static_cast<double>(hidden_size));
    mamba.Set("head_dim", width / std::max<int64_t>(n_heads, 1), "mamba_expand");
  }
  return mamba;
}

absl::Status Read(const nlohmann::json& json, const Attrs& fields, ModelConfig& config) {
  HubReader reader(json, fields, config);
  AttrReader& file = reader.file();
  reader.ReadSizes({32000, 4096, 32, 32, 0, 0}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6);
  RefuseExperts(file);
  config.embedding_scale =
      static_cast<float>(file.FloatOr("embedding_multiplier", 1, 0, kMaxMultiplier));
  config.residual_scale =
      static_cast<float>(file.FloatOr("residual_multiplier", 1, 0, kMaxMultiplier));
  config.logit_scale =
      static_cast<float>(1 / file.FloatOr("logits_scaling", 1, 1 / kMaxMultiplier, kMaxMultiplier));
  MixerFields& mixer = config.mixer_fields.emplace_back();
  mixer.model.Set("rms_norm_eps", double{config.norm.eps});
  SetAttention(reader, mixer.model);
  mixer.sections["mamba2"] = MambaFields(json, fields, file, config.hidden_size);
  const int64_t width = file.IntOr("shared_intermediate_size", 1024, 1, kMaxHiddenSize);
  const char* types = fields.Has("layer_types") ? "layer_types" : "layers_block_type";
  const auto all_mamba = [](int) { return std::string("mamba"); };
  reader.AddLayers(reader.LayerTypes(types, kLayers, all_mamba), kLayers, width);
  return reader.Done();
}

std::vector<TensorInFile> Tensor(const ModelConfig&, std::string_view name, const Shape& shape) {
  constexpr Renamed kOfLayer[] = {{"mlp.gate_proj.", "shared_mlp.input_linear."},
                                  {"mlp.up_proj.", "shared_mlp.input_linear."},
                                  {"mlp.down_proj.", "shared_mlp.output_linear."},
                                  {"self_attn.in_proj.", "mamba.in_proj."},
                                  {"self_attn.conv1d.", "mamba.conv1d."},
                                  {"self_attn.A_log", "mamba.A_log"},
                                  {"self_attn.dt_bias", "mamba.dt_bias"},
                                  {"self_attn.D", "mamba.D"},
                                  {"self_attn.norm.", "mamba.norm."},
                                  {"self_attn.out_proj.", "mamba.out_proj."}};
  TensorInFile tensor = {ReplacePrefix(name, {}, "model.layers.", kOfLayer), shape};
  const bool is_up = name.find(".mlp.up_proj.") != std::string_view::npos;
  if (is_up || name.find(".mlp.gate_proj.") != std::string_view::npos) {
    tensor.shape = {2 * shape[0], shape[1]};
    tensor.run = shape.elements();
    tensor.first = is_up ? tensor.run : 0;
  }
  return {tensor};
}

}  // namespace

const Family kGraniteMoeHybrid = {"granitemoehybrid", /*is_strict=*/false, Read, Tensor,
                                  IsUnusedInHub};

}  // namespace ovq
