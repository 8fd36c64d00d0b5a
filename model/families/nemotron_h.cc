// Family nemotron_h of transformers (Nemotron-H, Nemotron Nano v2, Nemotron 3 Nano): a model is a
// list of blocks, each a norm and one of Mamba-2, softmax attention without positions, a
// feed-forward or experts. Here a mixer and a feed-forward behind it are one layer. Defaults are
// those of transformers' code.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "kernels/mixers/mamba2/mamba2.h"
#include "kernels/mixers/no_mixer.h"
#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

// The letters of hybrid_override_pattern.
constexpr char kMamba = 'M', kAttention = '*', kDense = '-', kExperts = 'E';

// The blocks as letters: a list of names counts before the pattern.
std::string ReadNemotronBlocks(const ConfigFile& all, kernels::AttrReader& file) {
  constexpr const char* kLists[] = {"layers_block_type", "layer_types"};
  constexpr const char* kPattern = "hybrid_override_pattern";
  constexpr std::pair<std::string_view, char> kNames[] = {
      {"mamba", kMamba},         {"linear_attention", kMamba},
      {"attention", kAttention}, {"full_attention", kAttention},
      {"mlp", kDense},           {"moe", kExperts}};
  for (const char* list : kLists) {
    if (all.at(list).is_null()) continue;
    std::string blocks;
    for (const std::string& name : file.Strings(list)) {
      const auto known = std::ranges::find(kNames, name, &std::pair<std::string_view, char>::first);
      if (known != std::end(kNames)) blocks += known->second;
      if (known != std::end(kNames)) continue;
      file.Fail(
          absl::StrCat(list, "[", blocks.size(), "]"),
          absl::StrCat("unknown value ", Quoted(name), "; known: mamba, attention, mlp, moe"));
      break;
    }
    return blocks;
  }
  const std::string blocks = file.StringOr(kPattern, "ME*-");
  const size_t wrong = blocks.find_first_not_of("M*-E");
  if (wrong != std::string::npos) {
    file.Fail(kPattern, absl::StrCat("expected the letters M, *, - and E, got ",
                                     Quoted(blocks.substr(wrong, 1)), " at ", wrong));
  }
  return blocks;
}

std::shared_ptr<kernels::MixerConfig> NemotronAttention(HubReader& reader) {
  auto attention = reader.Attention<kernels::FullConfig>();
  attention->names = {{"num_attention_heads"}, {"num_key_value_heads"}, {"head_dim"}};
  attention->fields.input.norm = kernels::HeadNorm::kNone;
  reader.ReadMixer(*attention);
  return attention;
}

std::shared_ptr<kernels::MixerConfig> NemotronMamba(const ConfigFile& all, HubReader& reader,
                                                    const ModelConfig& config) {
  auto mamba = std::make_shared<kernels::LayerConfig<kernels::Mamba2Config>>();
  const kernels::Attrs& fields = all.fields;
  mamba->names = {{"num_heads", "mamba_num_heads"},
                  {"head_dim", "mamba_head_dim"},
                  {"state_size", "ssm_state_size"},
                  {"n_groups", Either(fields, "n_groups", "mamba_n_groups")},
                  {"conv_kernel", Either(fields, "conv_kernel", "mamba_d_conv")},
                  {"use_conv_bias", Either(fields, "use_conv_bias", "mamba_conv_bias")},
                  {"use_bias"},
                  {"dt_limit", Either(fields, "time_step_limit", "mamba_dt_limit")}};
  mamba->fields.n_heads = 128;
  mamba->fields.n_groups = 8;
  mamba->fields.norm_eps = config.norm.eps;
  reader.ReadMixer(*mamba);
  return mamba;
}

// bias: of the shared expert and of the latent projections, not of the experts that are chosen.
FeedForwardSpec NemotronExperts(HubReader& reader, bool bias) {
  kernels::AttrReader& file = reader.file();
  MixtureSpec mixture;
  mixture.router_bias = true;
  mixture.router.score = kernels::RouterScore::kSigmoid;
  reader.ReadExperts({"n_routed_experts", 8}, {"num_experts_per_tok", 2},
                     {"moe_intermediate_size", 7688}, mixture);
  reader.ReadExpertGroups("n_group", "topk_group", mixture);
  mixture.router.normalizes = file.BoolOr("norm_topk_prob", true);
  file.Float("routed_scaling_factor", mixture.router.scale, 0, 1e6);
  mixture.latent_width = file.IntOr("moe_latent_size", 0, 0, kMaxHiddenSize);
  mixture.latent_bias = bias;
  return {.kind = FeedForwardKind::kSquaredRelu,
          .width = file.IntOr("moe_shared_expert_intermediate_size", 7688, 1, kMaxHiddenSize),
          .bias = bias,
          .mixture = mixture};
}

absl::Status ReadNemotron(ConfigFile& all, ModelConfig& config) {
  HubReader reader(all, config);
  kernels::AttrReader& file = reader.file();
  constexpr std::string_view kActivations[] = {"relu2"};
  reader.ReadSizes({131072, 4096, 1, 32, 8, 128}, /*is_tied=*/false, "mamba_hidden_act");
  config.tie_word_embeddings = false;  // whatever the file says: its head is its own
  reader.ReadNorms("layer_norm_epsilon", 1e-5);
  file.ChoiceOr("mlp_hidden_act", kActivations);
  const std::string blocks = ReadNemotronBlocks(all, file);
  const bool has_experts = blocks.find(kExperts) != std::string::npos,
             has_dense = blocks.find(kDense) != std::string::npos;
  const bool bias = file.BoolOr("mlp_bias", false);
  FeedForwardSpec dense = {.kind = FeedForwardKind::kSquaredRelu, .bias = bias}, experts;
  if (has_dense) dense.width = file.IntOr("intermediate_size", 21504, 1, kMaxHiddenSize);
  if (has_experts) experts = NemotronExperts(reader, bias);
  const auto mamba = NemotronMamba(all, reader, config), attention = NemotronAttention(reader);
  const auto none = std::make_shared<kernels::LayerConfig<kernels::NoMixerConfig>>();
  if (blocks.empty() || std::ssize(blocks) > kMaxLayers) {
    file.Fail("hybrid_override_pattern",
              absl::StrCat("expected 1 to ", kMaxLayers, " blocks, got ", blocks.size()));
  }
  for (int i = 0; i < std::min<int64_t>(std::ssize(blocks), kMaxLayers); ++i) {
    const bool is_mixer = blocks[i] == kMamba || blocks[i] == kAttention;
    if (is_mixer || i == 0 || config.layers.back().feed_forward.exists()) {
      LayerSpec& next = config.layers.emplace_back();
      next.type = kernels::kNoMixer, next.mixer = none, next.first_block = i;
    }
    LayerSpec& layer = config.layers.back();
    if (blocks[i] == kMamba) layer.type = "mamba2", layer.mixer = mamba;
    if (blocks[i] == kAttention) layer.type = "full_attention", layer.mixer = attention;
    if (!is_mixer) layer.feed_forward = blocks[i] == kDense ? dense : experts;
  }
  config.n_layers = static_cast<int>(config.layers.size());
  return reader.Done();
}

std::vector<TensorInFile> NemotronTensor(const ModelConfig& config, const TensorName& name,
                                         const kernels::Shape& shape) {
  if (name.leaf == "lm_head.weight") return {{"lm_head.weight", shape}};
  if (name.layer < 0) {
    const bool is_norm = name.leaf == "model.norm.weight";
    std::vector<TensorInFile> places;
    for (const char* prefix : {"backbone.", "model."}) {
      for (const char* leaf : {"embeddings.weight", "embedding.weight"}) {
        places.push_back({absl::StrCat(prefix, is_norm ? "norm_f.weight" : leaf), shape});
      }
    }
    return places;
  }
  const LayerSpec& layer = config.layers[name.layer];
  const bool has_experts = layer.feed_forward.mixture.has_value();
  const bool is_second =
      layer.type != kernels::kNoMixer &&
      (name.leaf.starts_with("mlp.") || name.leaf.starts_with("post_attention_layernorm."));
  const Renamed kNames[] = {{"input_layernorm.", "norm."},
                            {"post_attention_layernorm.", "norm."},
                            {"self_attn.", "mixer."},
                            {"mlp.router.bias", "mixer.gate.e_score_correction_bias"},
                            {"mlp.router.", "mixer.gate."},
                            {"mlp.latent_in.", "mixer.fc1_latent_proj."},
                            {"mlp.latent_out.", "mixer.fc2_latent_proj."},
                            {"mlp.experts.", "mixer.experts."},
                            {"mlp.", has_experts ? "mixer.shared_experts." : "mixer."}};
  TensorName in_file = name;
  in_file.layer = layer.first_block + (is_second ? 1 : 0);
  std::vector<TensorInFile> places;
  for (const char* layers : {"backbone.layers.", "model.layers."}) {
    places.push_back({in_file.As(kNames, layers), shape});
    if (!name.leaf.starts_with("mlp.experts.")) continue;
    const StackedExperts stacked = {.gate_up = in_file.With("mixer.experts.up_proj", layers),
                                    .down = in_file.With("mixer.experts.down_proj", layers)};
    places.push_back(ExpertPart(config, name, stacked, shape));
  }
  return places;
}

bool IsUnusedInNemotron(std::string_view name) { return name.starts_with("mtp."); }

}  // namespace

const Family kNemotronH = {.model_type = "nemotron_h",
                           .read = ReadNemotron,
                           .tensor = NemotronTensor,
                           .is_unused = IsUnusedInNemotron};

}  // namespace ovq::model
