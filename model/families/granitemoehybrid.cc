// Family granitemoehybrid of transformers (dense Granite 4.0 hybrids): Mamba-2 layers and a few of
// softmax attention, without positions in published files. Defaults are those of transformers'
// code.
#include <memory>
#include <string>

#include "kernels/mixers/mamba2/mamba2.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr int64_t kMaxExperts = 1 << 20;
constexpr double kMaxMultiplier = 1e6;

void RefuseExperts(kernels::AttrReader& file) {
  constexpr int64_t kInCode = 8;  // default of num_local_experts in transformers
  if (file.IntOr("num_local_experts", kInCode, 0, kMaxExperts) == 0) return;
  file.Fail("num_local_experts", "expected 0: mixtures of experts are not supported");
}

std::shared_ptr<kernels::MixerConfig> Attention(HubReader& reader) {
  constexpr std::string_view kPositions[] = {"nope", "rope"};
  auto attention = reader.Attention<kernels::FullConfig>();
  attention->fields.input.norm = kernels::HeadNorm::kNone;
  attention->fields.input.score_scale = 1;
  attention->names.push_back({"score_scale", "attention_multiplier"});
  if (reader.file().ChoiceOr("position_embedding_type", kPositions) == 1) {
    reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names);
  }
  reader.ReadMixer(*attention);
  return attention;
}

std::shared_ptr<kernels::MixerConfig> Mamba(const ConfigFile& file, HubReader& reader,
                                            const ModelConfig& config) {
  auto mamba = std::make_shared<kernels::LayerConfig<kernels::Mamba2Config>>();
  mamba->names = {{"num_heads", "mamba_n_heads"},       {"state_size", "mamba_d_state"},
                  {"n_groups", "mamba_n_groups"},       {"conv_kernel", "mamba_d_conv"},
                  {"use_conv_bias", "mamba_conv_bias"}, {"use_bias", "mamba_proj_bias"},
                  {"dt_limit", "time_step_limit"},      {"expand", "mamba_expand", true}};
  kernels::Mamba2Config& fields = mamba->fields;
  fields.n_heads = 128;
  fields.state_size = 256;
  fields.norm_groups = 1;
  fields.norm_eps = config.norm.eps;
  fields.expand = reader.file().FloatOr("mamba_expand", 2, 0.001, 1024);
  if (file.fields.Has("mamba_d_head") && file.at("mamba_d_head") != "auto") {
    mamba->names.push_back({"head_dim", "mamba_d_head"});
  } else {
    const int64_t n_heads = Peek(file.fields, "mamba_n_heads", fields.n_heads, kMaxHiddenSize);
    const auto width =
        static_cast<int64_t>(fields.expand * static_cast<double>(config.hidden_size));
    fields.head_dim = static_cast<int>(width / n_heads);
    mamba->names.push_back({"head_dim", "mamba_expand", /*is_filled=*/true});
  }
  reader.ReadMixer(*mamba);
  return mamba;
}

absl::Status Read(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({32000, 4096, 32, 32, 0, 0}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6);
  RefuseExperts(file);
  file.Float("embedding_multiplier", config.embedding_scale, 0, kMaxMultiplier);
  file.Float("residual_multiplier", config.residual_scale, 0, kMaxMultiplier);
  config.logit_scale =
      static_cast<float>(1 / file.FloatOr("logits_scaling", 1, 1 / kMaxMultiplier, kMaxMultiplier));
  const auto mamba = Mamba(config_file, reader, config), attention = Attention(reader);
  const int64_t width = file.IntOr("shared_intermediate_size", 1024, 1, kMaxHiddenSize);
  const char* types = config_file.fields.Has("layer_types") ? "layer_types" : "layers_block_type";
  reader.AddLayers(
      types, {{"mamba", "mamba2", mamba}, {"attention", "full_attention", attention}},
      [](int) { return 0; }, width);
  return reader.Done();
}

std::vector<TensorInFile> Tensor(const ModelConfig&, const TensorName& name,
                                 const kernels::Shape& shape) {
  constexpr Renamed kNames[] = {{"mlp.gate_proj.", "shared_mlp.input_linear."},
                                {"mlp.up_proj.", "shared_mlp.input_linear."},
                                {"mlp.down_proj.", "shared_mlp.output_linear."},
                                {"self_attn.in_proj.", "mamba.in_proj."},
                                {"self_attn.conv1d.", "mamba.conv1d."},
                                {"self_attn.A_log", "mamba.A_log"},
                                {"self_attn.dt_bias", "mamba.dt_bias"},
                                {"self_attn.D", "mamba.D"},
                                {"self_attn.norm.", "mamba.norm."},
                                {"self_attn.out_proj.", "mamba.out_proj."}};
  TensorInFile tensor = {name.As(kNames), shape};
  const bool is_up = name.leaf.starts_with("mlp.up_proj.");
  if (is_up || name.leaf.starts_with("mlp.gate_proj.")) {
    tensor.shape = {2 * shape[0], shape[1]};
    tensor.run = shape.elements();
    tensor.first = is_up ? tensor.run : 0;
  }
  return {tensor};
}

}  // namespace

const Family kGraniteMoeHybrid = {
    .model_type = "granitemoehybrid", .read = Read, .tensor = Tensor, .is_unused = IsUnusedInHub};

}  // namespace ovq::model
