// Families of Qwen3.5's text models: model_type "qwen3_5", with the text model's fields in an
// object of their own, and "qwen3_5_text" of transformers; "qwen3_5_moe" and "qwen3_5_moe_text"
// with experts in every layer. Gated delta nets and gated softmax attention. Defaults are those of
// transformers' code.
#include <memory>
#include <string>

#include "kernels/mixers/softmax/softmax.h"
#include "model/families/hub.h"

namespace ovq::model {
namespace {

std::shared_ptr<kernels::MixerConfig> QwenAttention(HubReader& reader, const ModelConfig& config) {
  auto attention = reader.Attention<kernels::FullConfig>();
  kernels::AttentionInput& input = attention->fields.input;
  input.norm = kernels::HeadNorm::kRms;
  input.norm_eps = config.norm.eps;
  input.norm_weight = kernels::NormWeightKind::kOnePlus;
  input.gate = true;
  attention->names.push_back({"output_gate_bias", "attention_bias"});
  reader.SetRope(kernels::RopeSpec::Layout::kHalves, attention->fields, attention->names,
                 {.partial = 0.25, .types = kUsualRopes});
  reader.ReadMixer(*attention);
  return attention;
}

FeedForwardSpec Dense(HubReader& reader) {
  return {FeedForwardKind::kGatedSilu,
          reader.file().IntOr("intermediate_size", 12288, 1, kMaxHiddenSize)};
}

FeedForwardSpec WithExperts(HubReader& reader) {
  kernels::AttrReader& file = reader.file();
  MixtureSpec mixture;
  mixture.gate = true;
  reader.ReadExperts({"num_experts", 256}, {"num_experts_per_tok", 8},
                     {"moe_intermediate_size", 512}, mixture);
  if (!file.BoolOr("norm_topk_prob", true)) {
    file.Fail("norm_topk_prob", "expected true: the weights of the chosen experts sum to 1");
  }
  file.IntOr("decoder_sparse_step", 1, 1, 1);
  return {.kind = FeedForwardKind::kGatedSilu,
          .width = file.IntOr("shared_expert_intermediate_size", 512, 1, kMaxHiddenSize),
          .mixture = mixture};
}

absl::Status ReadQwen(ConfigFile& config_file, ModelConfig& config, const HubSizes& sizes,
                      FeedForwardSpec (*read_feed_forward)(HubReader&)) {
  HubReader reader(config_file, config);
  kernels::AttrReader& file = reader.file();
  reader.ReadSizes(sizes, /*is_tied=*/false);
  reader.ReadNorms("rms_norm_eps", 1e-6, {.weight = kernels::NormWeightKind::kOnePlus});
  if (!file.BoolOr("attn_output_gate", true)) {
    file.Fail("attn_output_gate", "expected true: every published layer has the gate");
  }
  if (!config_file.at("mlp_only_layers").empty()) {
    file.Fail("mlp_only_layers", "expected none: what it asks for is not supported");
  }
  const auto gdn = reader.GatedDeltaNet({16, 32, 128, 128});
  reader.ReadMixer(*gdn);
  const auto attention = QwenAttention(reader, config);
  int64_t every = 4;
  file.Int("full_attention_interval", every, 1, kMaxLayers);
  reader.AddLayers(
      "layer_types",
      {{"linear_attention", "gated_delta_net", gdn},
       {"full_attention", "full_attention", attention}},
      [every](int i) { return (i + 1) % every == 0 ? 1 : 0; }, read_feed_forward(reader));
  return reader.Done();
}

absl::Status ReadDense(ConfigFile& file, ModelConfig& config) {
  return ReadQwen(file, config, {248320, 4096, 32, 16, 4, 256}, Dense);
}
absl::Status ReadMixture(ConfigFile& file, ModelConfig& config) {
  return ReadQwen(file, config, {248320, 2048, 40, 16, 2, 256}, WithExperts);
}

// q_proj holds each head's query rows followed by its gate rows.
TensorInFile HalfPerHead(const ModelConfig& config, const TensorName& name,
                         const kernels::Shape& shape) {
  const int64_t head_dim = config.layers[name.layer].mixer->attention()->shape.head_dim;
  const int64_t row = shape.rank() == 2 ? shape[1] : 1;  // row length of a weight; 1 for a bias
  const bool is_gate = name.leaf.starts_with("self_attn.g_proj.");
  constexpr Renamed kGate[] = {{"self_attn.g_proj.", "self_attn.q_proj."}};
  return {name.As(kGate),
          shape.rank() == 2 ? kernels::Shape{2 * shape[0], row} : kernels::Shape{2 * shape[0]},
          head_dim * row, is_gate ? head_dim * row : 0, 2 * head_dim * row};
}

TensorInFile InFile(const ModelConfig& config, const TensorName& name,
                    const kernels::Shape& shape) {
  const auto begins = [leaf = name.leaf](const char* begin) { return leaf.starts_with(begin); };
  if (name.layer < 0) return {name.As({}), shape};
  if (begins("mlp.") && config.layers[name.layer].feed_forward.mixture) {
    constexpr Renamed kNames[] = {{"mlp.router.", "mlp.gate."},
                                  {"mlp.shared_gate.", "mlp.shared_expert_gate."},
                                  {"mlp.experts.", "mlp.experts."},
                                  {"mlp.", "mlp.shared_expert."}};
    return {name.As(kNames), shape};
  }
  if (config.layers[name.layer].type != "gated_delta_net") {
    const bool is_half = begins("self_attn.q_proj.") || begins("self_attn.g_proj.");
    return is_half ? HalfPerHead(config, name, shape) : TensorInFile{name.As({}), shape};
  }
  if (name.leaf.ends_with("_conv1d.weight")) {
    return GatedDeltaNetPart(config, name, name.With("linear_attn.conv1d.weight"), shape);
  }
  if (begins("self_attn.q_proj.") || begins("self_attn.k_proj.") || begins("self_attn.v_proj.")) {
    return GatedDeltaNetPart(config, name, name.With("linear_attn.in_proj_qkv.weight"), shape);
  }
  constexpr Renamed kNames[] = {{"self_attn.g_proj.", "linear_attn.in_proj_z."},
                                {"self_attn.a_proj.", "linear_attn.in_proj_a."},
                                {"self_attn.b_proj.", "linear_attn.in_proj_b."},
                                {"self_attn.o_norm.", "linear_attn.norm."},
                                {"self_attn.o_proj.", "linear_attn.out_proj."},
                                {"self_attn.", "linear_attn."}};
  return {name.As(kNames), shape};
}

std::vector<TensorInFile> QwenTensor(const ModelConfig& config, const TensorName& name,
                                     const kernels::Shape& shape) {
  std::vector<TensorInFile> places = InEitherPrefix(config, InFile(config, name, shape));
  if (!name.leaf.starts_with("mlp.experts.")) return places;
  const StackedExperts stacked = {.gate_up = name.With("mlp.experts.gate_up_proj"),
                                  .down = name.With("mlp.experts.down_proj")};
  std::vector<TensorInFile> all = InEitherPrefix(config, ExpertPart(config, name, stacked, shape));
  all.insert(all.end(), places.begin(), places.end());
  return all;
}

// Tensors of multi-token prediction and of vision.
bool IsUnusedInQwen(std::string_view name) {
  return name.starts_with("mtp.") || name.starts_with("model.visual.") || IsUnusedInHub(name);
}

}  // namespace

const Family kQwen35 = {
    .model_type = "qwen3_5", .read = ReadDense, .tensor = QwenTensor, .is_unused = IsUnusedInQwen};
const Family kQwen35Text = {.model_type = "qwen3_5_text",
                            .read = ReadDense,
                            .tensor = QwenTensor,
                            .is_unused = IsUnusedInQwen};
const Family kQwen35Moe = {.model_type = "qwen3_5_moe",
                           .read = ReadMixture,
                           .tensor = QwenTensor,
                           .is_unused = IsUnusedInQwen};
const Family kQwen35MoeText = {.model_type = "qwen3_5_moe_text",
                               .read = ReadMixture,
                               .tensor = QwenTensor,
                               .is_unused = IsUnusedInQwen};

}  // namespace ovq::model
