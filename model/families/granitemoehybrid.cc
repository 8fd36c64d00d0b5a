// Family granitemoehybrid of transformers (Granite 4.0 hybrids): Mamba-2 layers and a few of
// softmax attention, without positions in published files, with experts in all layers or in none.
// Defaults are those of transformers' code.
#include <memory>
#include <string>

#include "kernels/mixers/mamba2/mamba2.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

constexpr double kMaxMultiplier = 1e6;

// The experts beside the shared feed-forward; none where the file says 0.
std::optional<MixtureSpec> GraniteExperts(HubReader& reader) {
  if (reader.file().IntOr("num_local_experts", 8, 0, kernels::kMaxExperts) == 0) {
    return std::nullopt;
  }
  MixtureSpec mixture;
  reader.ReadExperts({"num_local_experts", 8}, {"num_experts_per_tok", 2},
                     {"intermediate_size", 11008}, mixture);
  return mixture;
}

std::shared_ptr<kernels::MixerConfig> GraniteAttention(HubReader& reader) {
  constexpr std::string_view kPositions[] = {"nope", "rope"};
  auto attention = reader.Attention<kernels::FullConfig>();
  attention->fields.input.norm = kernels::HeadNorm::kNone;
  attention->fields.input.score_scale = 1;
  attention->names.push_back({"score_scale", "attention_multiplier"});
  if (reader.file().ChoiceOr("position_embedding_type", kPositions) == 1) {
    reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names,
                   {.types = kUsualRopes});
  }
  reader.ReadMixer(*attention);
  return attention;
}

std::shared_ptr<kernels::MixerConfig> GraniteMamba(const ConfigFile& file, HubReader& reader,
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

absl::Status ReadGranite(ConfigFile& config_file, ModelConfig& config) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes({32000, 4096, 32, 32, 0, 0}, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6);
  file.Float("embedding_multiplier", config.embedding_scale, 0, kMaxMultiplier);
  file.Float("residual_multiplier", config.residual_scale, 0, kMaxMultiplier);
  config.logit_scale =
      static_cast<float>(1 / file.FloatOr("logits_scaling", 1, 1 / kMaxMultiplier, kMaxMultiplier));
  const auto mamba = GraniteMamba(config_file, reader, config),
             attention = GraniteAttention(reader);
  const int64_t width = file.IntOr("shared_intermediate_size", 1024, 1, kMaxHiddenSize);
  const FeedForwardSpec feed_forward = {
      .kind = FeedForwardKind::kGatedSilu, .width = width, .mixture = GraniteExperts(reader)};
  reader.AddLayers(
      Either(config_file.fields, "layer_types", "layers_block_type"),
      {{"mamba", "mamba2", mamba},
       {"attention", "full_attention", attention},
       {"linear_attention", "mamba2", mamba},
       {"full_attention", "full_attention", attention}},
      [](int) { return 0; }, feed_forward);
  return reader.Done();
}

// Published folders stack gate and up, and all experts; GGUF files have each matrix by itself.
std::vector<TensorInFile> GraniteTensor(const ModelConfig& config, const TensorName& name,
                                        const kernels::Shape& shape) {
  constexpr Renamed kNames[] = {{"mlp.router.", "block_sparse_moe.router.layer."},
                                {"mlp.experts.", "block_sparse_moe.experts."},
                                {"mlp.gate_proj.", "shared_mlp.gate_proj."},
                                {"mlp.up_proj.", "shared_mlp.up_proj."},
                                {"mlp.down_proj.", "shared_mlp.output_linear."},
                                {"self_attn.in_proj.", "mamba.in_proj."},
                                {"self_attn.conv1d.", "mamba.conv1d."},
                                {"self_attn.A_log", "mamba.A_log"},
                                {"self_attn.dt_bias", "mamba.dt_bias"},
                                {"self_attn.D", "mamba.D"},
                                {"self_attn.norm.", "mamba.norm."},
                                {"self_attn.out_proj.", "mamba.out_proj."}};
  if (name.leaf.starts_with("mlp.experts.")) {
    const StackedExperts stacked = {.gate_up = name.With("block_sparse_moe.input_linear.weight"),
                                    .down = name.With("block_sparse_moe.output_linear.weight")};
    return {ExpertPart(config, name, stacked, shape), {name.As(kNames), shape}};
  }
  for (const bool is_up : {false, true}) {
    if (!name.leaf.starts_with(is_up ? "mlp.up_proj." : "mlp.gate_proj.")) continue;
    const int64_t half = shape.elements();
    return {{name.With("shared_mlp.input_linear.weight"),
             {2 * shape[0], shape[1]},
             half,
             is_up ? half : 0},
            {name.As(kNames), shape}};
  }
  return {{name.As(kNames), shape}};
}

}  // namespace

const Family kGraniteMoeHybrid = {.model_type = "granitemoehybrid",
                                  .read = ReadGranite,
                                  .tensor = GraniteTensor,
                                  .is_unused = IsUnusedInHub};

}  // namespace ovq::model
