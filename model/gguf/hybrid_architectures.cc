#include "model/gguf/hybrid_architectures.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/text.h"

namespace ovq::model {
namespace {

using Json = nlohmann::json;

// Tensors that several have, as the families call them.
constexpr char kBeta[] = ".ssm_beta.weight", kConvBias[] = ".ssm_conv1d.bias";

int64_t Most(const std::vector<int64_t>& numbers) {
  return numbers.empty() ? 0 : std::ranges::max(numbers);
}

// A key whose value must be that of another.
void ExpectEqual(ArchitectureKeys& keys, std::string_view key, std::string_view other,
                 int64_t expected) {
  if (keys.IntOr(key, expected, 0) != expected) {
    keys.Fail(key, absl::StrCat("expected ", AbslView(other)));
  }
}

// Checks the score of experts, 1 a softmax and 2 a sigmoid; returns whether it is the latter.
bool ScoresBySigmoid(ArchitectureKeys& keys) {
  constexpr char kKey[] = "expert_gating_func";
  const int64_t score = keys.IntOr(kKey, 2);
  if (score > 2) keys.Fail(kKey, absl::StrCat("expected 1 or 2, got ", score));
  return score == 2;
}

// Granite's models of attention alone are hybrids without Mamba-2 layers.
void ReadGranite(ArchitectureKeys& keys, Json& config) {
  const int64_t n_layers = config["num_hidden_layers"], hidden = config["hidden_size"],
                width = keys.Int("feed_forward_length"),
                n_experts = keys.IntOr("expert_count", 0, 0);
  ExpectEqual(keys, "attention.value_length", "attention.key_length", config["head_dim"]);
  ExpectEqual(keys, "rope.dimension_count", "attention.key_length", config["head_dim"]);
  const std::vector<int64_t> kv_heads = keys.IntPerLayer("attention.head_count_kv", n_layers);
  config["num_key_value_heads"] = std::max<int64_t>(Most(kv_heads), 1);
  Json& types = config["layer_types"] = Json::array();
  for (const int64_t heads : kv_heads) types.push_back(heads > 0 ? "attention" : "mamba");
  config["intermediate_size"] = width;
  config["num_local_experts"] = n_experts;
  constexpr char kShared[] = "expert_shared_feed_forward_length";
  config["shared_intermediate_size"] =
      n_experts > 0 ? keys.Int(kShared) : keys.IntOr(kShared, width);
  if (n_experts > 0) {
    config["num_experts_per_tok"] = keys.Int("expert_used_count");
    ExpectEqual(keys, "expert_feed_forward_length", "feed_forward_length", width);
  }
  config["attention_multiplier"] = keys.FloatOr(
      "attention.scale", 1 / std::sqrt(std::max(config["head_dim"].get<double>(), 1.0)));
  config["embedding_multiplier"] = keys.FloatOr("embedding_scale", 1);
  config["residual_multiplier"] = keys.FloatOr("residual_scale", 1);
  config["logits_scaling"] = keys.FloatOr("logit_scale", 1);
  const bool has_mamba = std::ranges::count(kv_heads, 0) > 0;
  const bool turns = keys.BoolOr("rope.scaling.finetuned", !has_mamba);
  config["position_embedding_type"] = turns ? "rope" : "nope";
  ReadRopeDivisors(keys, config);
  if (!has_mamba) return;
  const int64_t inner = keys.Int("ssm.inner_size"), n_heads = keys.Int("ssm.time_step_rank");
  config["mamba_expand"] =
      static_cast<double>(inner) / static_cast<double>(std::max<int64_t>(hidden, 1));
  config["mamba_n_heads"] = n_heads;
  config["mamba_d_head"] = inner / std::max<int64_t>(n_heads, 1);
  config["mamba_d_conv"] = keys.Int("ssm.conv_kernel");
  config["mamba_d_state"] = keys.Int("ssm.state_size");
  config["mamba_n_groups"] = keys.Int("ssm.group_count");
  config["mamba_conv_bias"] = true;
  config["mamba_proj_bias"] = false;
}

// Gated delta nets, and gated attention in every fourth layer unless a key says else.
void ReadQwen35(ArchitectureKeys& keys, Json& config) {
  const int64_t n_layers = config["num_hidden_layers"], head_dim = config["head_dim"];
  ExpectEqual(keys, "attention.value_length", "attention.key_length", head_dim);
  config["num_key_value_heads"] =
      keys.IntOr("attention.head_count_kv", config["num_attention_heads"]);
  keys.Ignore(
      "rope.dimension_sections");  // of pictures' positions; those of texts are all the same
  config["partial_rotary_factor"] =
      static_cast<double>(keys.IntOr("rope.dimension_count", head_dim)) /
      static_cast<double>(std::max<int64_t>(head_dim, 1));
  const int64_t value_heads = keys.Int("ssm.time_step_rank"), inner = keys.Int("ssm.inner_size");
  config["linear_num_key_heads"] = keys.Int("ssm.group_count");
  config["linear_num_value_heads"] = value_heads;
  config["linear_key_head_dim"] = keys.Int("ssm.state_size");
  config["linear_value_head_dim"] = inner / std::max<int64_t>(value_heads, 1);
  config["linear_conv_kernel_dim"] = keys.Int("ssm.conv_kernel");
  constexpr char kRecurrent[] = "attention.recurrent_layers";
  const int64_t every = keys.IntOr("full_attention_interval", 4);
  std::vector<int64_t> recurrent;
  if (keys.Has(kRecurrent)) recurrent = keys.IntPerLayer(kRecurrent, keys.Int("block_count"));
  for (int64_t i = std::ssize(recurrent); i < n_layers; ++i) {
    recurrent.push_back(every > 0 && (i + 1) % every == 0 ? 0 : 1);
  }
  Json& types = config["layer_types"] = Json::array();
  for (int64_t i = 0; i < n_layers; ++i) {
    types.push_back(recurrent[static_cast<size_t>(i)] != 0 ? "linear_attention" : "full_attention");
  }
  const int64_t n_experts = keys.IntOr("expert_count", 0, 0);
  if (config["model_type"] != "qwen3_5_moe_text") {
    if (n_experts > 0) keys.Fail("expert_count", "expected 0");
    config["intermediate_size"] = keys.Int("feed_forward_length");
    return;
  }
  config["num_experts"] = n_experts;
  config["num_experts_per_tok"] = keys.Int("expert_used_count");
  config["moe_intermediate_size"] = keys.Int("expert_feed_forward_length");
  config["shared_expert_intermediate_size"] = keys.Int("expert_shared_feed_forward_length");
  keys.Ignore("feed_forward_length");
}

// A block is one of Mamba-2, attention without positions, a feed-forward or experts.
void ReadNemotronH(ArchitectureKeys& keys, Json& config) {
  const int64_t n_blocks = keys.Int("block_count"), n_layers = config["num_hidden_layers"],
                n_experts = keys.IntOr("expert_count", 0, 0);
  ExpectEqual(keys, "attention.value_length", "attention.key_length", config["head_dim"]);
  const std::vector<int64_t> kv_heads = keys.IntPerLayer("attention.head_count_kv", n_blocks),
                             widths = keys.IntPerLayer("feed_forward_length", n_blocks);
  const int64_t n = std::min({std::ssize(kv_heads), std::ssize(widths), n_layers});
  std::string blocks;
  for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
    blocks += kv_heads[i] > 0 ? '*' : widths[i] == 0 ? 'M' : n_experts > 0 ? 'E' : '-';
  }
  config["hybrid_override_pattern"] = blocks;
  config["num_key_value_heads"] = std::max<int64_t>(Most(kv_heads), 1);
  config["intermediate_size"] = std::max<int64_t>(Most(widths), 1);
  config["layer_norm_epsilon"] = config["rms_norm_eps"];
  for (const char* key : {"attention.layer_norm_epsilon", "rope.dimension_count"}) keys.Ignore(key);
  const int64_t inner = keys.Int("ssm.inner_size"), n_heads = keys.Int("ssm.time_step_rank");
  config["mamba_num_heads"] = n_heads;
  config["mamba_head_dim"] = inner / std::max<int64_t>(n_heads, 1);
  config["ssm_state_size"] = keys.Int("ssm.state_size");
  config["n_groups"] = keys.Int("ssm.group_count");
  config["conv_kernel"] = keys.Int("ssm.conv_kernel");
  config["use_conv_bias"] = FindTensor(keys.file(), kConvBias) != nullptr;
  if (n_experts == 0) return;
  config["n_routed_experts"] = n_experts;
  config["num_experts_per_tok"] = keys.Int("expert_used_count");
  config["moe_intermediate_size"] = keys.Int("expert_feed_forward_length");
  config["moe_shared_expert_intermediate_size"] = keys.Int("expert_shared_feed_forward_length");
  keys.Ignore("expert_shared_count");  // their widths are one sum
  config["n_group"] = keys.IntOr("expert_group_count", 1);
  config["topk_group"] = keys.IntOr("expert_group_used_count", 1);
  config["norm_topk_prob"] = keys.BoolOr("expert_weights_norm", false);
  config["routed_scaling_factor"] = keys.FloatOr("expert_weights_scale", 1);
  if (!ScoresBySigmoid(keys)) keys.Fail("expert_gating_func", "expected 2");
  if (const int64_t latent = keys.IntOr("moe_latent_size", 0, 0))
    config["moe_latent_size"] = latent;
}

// Kimi Delta Attention where a layer has no key heads, else latent attention without positions.
void ReadKimiLinear(ArchitectureKeys& keys, Json& config) {
  const int64_t n_layers = config["num_hidden_layers"], heads = config["num_attention_heads"],
                rank = keys.Int("attention.kv_lora_rank"),
                beside = keys.Int("rope.dimension_count"),
                key_width = keys.Int("attention.key_length_mla");
  ExpectEqual(keys, "attention.key_length", "attention.kv_lora_rank + rope.dimension_count",
              rank + beside);
  keys.Ignore("attention.value_length");
  config["kv_lora_rank"] = rank;
  config["qk_rope_head_dim"] = beside;
  config["qk_nope_head_dim"] = key_width - beside;
  config["v_head_dim"] = keys.Int("attention.value_length_mla");
  config["num_key_value_heads"] = heads;
  config["mla_use_nope"] = true;
  const GgufTensor* const beta = FindTensor(keys.file(), kBeta);  // a row for each head
  Json delta_layers = Json::array();                              // counted from 1
  int64_t layer = 0;
  for (const int64_t kv_heads : keys.IntPerLayer("attention.head_count_kv", n_layers)) {
    ++layer;
    if (kv_heads == 0) delta_layers.push_back(layer);
  }
  config["linear_attn_config"] = {{"head_dim", keys.Int("kda.head_dim")},
                                  {"num_heads", beta == nullptr ? heads : beta->shape[0]},
                                  {"short_conv_kernel_size", keys.Int("ssm.conv_kernel")},
                                  {"kda_layers", delta_layers}};
  config["intermediate_size"] = keys.Int("feed_forward_length");
  config["num_experts"] = keys.Int("expert_count");
  config["num_experts_per_token"] = keys.Int("expert_used_count");
  config["moe_intermediate_size"] = keys.Int("expert_feed_forward_length");
  config["num_shared_experts"] = keys.IntOr("expert_shared_count", 0, 0);
  config["first_k_dense_replace"] = keys.IntOr("leading_dense_block_count", 0, 0);
  config["num_expert_group"] = keys.IntOr("expert_group_count", 1);
  config["topk_group"] = keys.IntOr("expert_group_used_count", 1);
  config["moe_router_activation_func"] = ScoresBySigmoid(keys) ? "sigmoid" : "softmax";
  config["moe_renormalize"] = keys.BoolOr("expert_weights_norm", true);
  config["routed_scaling_factor"] = keys.FloatOr("expert_weights_scale", 1);
}

constexpr GgufName kGraniteNames[] = {{"ffn_gate_inp.", "block_sparse_moe.router.layer."},
                                      {"ffn_gate_shexp.", "shared_mlp.gate_proj."},
                                      {"ffn_up_shexp.", "shared_mlp.up_proj."},
                                      {"ffn_down_shexp.", "shared_mlp.output_linear."},
                                      {"ffn_gate.", "shared_mlp.gate_proj."},
                                      {"ffn_up.", "shared_mlp.up_proj."},
                                      {"ffn_down.", "shared_mlp.output_linear."},
                                      {"ssm_in.", "mamba.in_proj."},
                                      {"ssm_conv1d.", "mamba.conv1d."},
                                      {"ssm_dt.bias", "mamba.dt_bias"},
                                      {"ssm_a", "mamba.A_log"},
                                      {"ssm_d", "mamba.D"},
                                      {"ssm_norm.", "mamba.norm."},
                                      {"ssm_out.", "mamba.out_proj."}};
constexpr GgufName kQwen35Names[] = {{"ffn_gate_inp.", "mlp.gate."},
                                     {"ffn_gate_inp_shexp.", "mlp.shared_expert_gate."},
                                     {"ffn_gate_shexp.", "mlp.shared_expert.gate_proj."},
                                     {"ffn_up_shexp.", "mlp.shared_expert.up_proj."},
                                     {"ffn_down_shexp.", "mlp.shared_expert.down_proj."},
                                     {"attn_qkv.", "linear_attn.in_proj_qkv."},
                                     {"attn_gate.", "linear_attn.in_proj_z."},
                                     {"ssm_alpha.", "linear_attn.in_proj_a."},
                                     {"ssm_beta.", "linear_attn.in_proj_b."},
                                     {"ssm_conv1d.", "linear_attn.conv1d."},
                                     {"ssm_dt.bias", "linear_attn.dt_bias"},
                                     {"ssm_a", "linear_attn.A_log"},
                                     {"ssm_norm.", "linear_attn.norm."},
                                     {"ssm_out.", "linear_attn.out_proj."}};
constexpr GgufName kNemotronNames[] = {{"token_embd.", "model.embeddings."},
                                       {"output_norm.", "model.norm_f."},
                                       {"attn_norm.", "norm."},
                                       {"attn_q.", "mixer.q_proj."},
                                       {"attn_k.", "mixer.k_proj."},
                                       {"attn_v.", "mixer.v_proj."},
                                       {"attn_output.", "mixer.o_proj."},
                                       {"ssm_in.", "mixer.in_proj."},
                                       {"ssm_conv1d.", "mixer.conv1d."},
                                       {"ssm_dt.bias", "mixer.dt_bias"},
                                       {"ssm_a", "mixer.A_log"},
                                       {"ssm_d", "mixer.D"},
                                       {"ssm_norm.", "mixer.norm."},
                                       {"ssm_out.", "mixer.out_proj."},
                                       {"ffn_up.", "mixer.up_proj."},
                                       {"ffn_down.", "mixer.down_proj."},
                                       {"ffn_gate_inp.", "mixer.gate."},
                                       {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias"},
                                       {"ffn_latent_down.", "mixer.fc1_latent_proj."},
                                       {"ffn_latent_up.", "mixer.fc2_latent_proj."},
                                       {"ffn_up_shexp.", "mixer.shared_experts.up_proj."},
                                       {"ffn_down_shexp.", "mixer.shared_experts.down_proj."}};
constexpr GgufName kKimiNames[] = {
    {"ffn_gate_inp.", "block_sparse_moe.gate."},
    {"exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias"},
    {"ffn_gate_shexp.", "block_sparse_moe.shared_experts.gate_proj."},
    {"ffn_up_shexp.", "block_sparse_moe.shared_experts.up_proj."},
    {"ffn_down_shexp.", "block_sparse_moe.shared_experts.down_proj."},
    {"attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa."},
    {"attn_kv_a_norm.", "self_attn.kv_a_layernorm."},
    {"attn_kv_b.", "self_attn.kv_b_proj."},
    {"ssm_conv1d_q.", "self_attn.q_conv1d."},
    {"ssm_conv1d_k.", "self_attn.k_conv1d."},
    {"ssm_conv1d_v.", "self_attn.v_conv1d."},
    {"ssm_beta.", "self_attn.b_proj."},
    {"ssm_f_a.", "self_attn.f_a_proj."},
    {"ssm_f_b.", "self_attn.f_b_proj."},
    {"ssm_g_a.", "self_attn.g_a_proj."},
    {"ssm_g_b.", "self_attn.g_b_proj."},
    {"ssm_dt.bias", "self_attn.dt_bias"},
    {"ssm_a", "self_attn.A_log"},
    {"ssm_norm.", "self_attn.o_norm."}};

constexpr Architecture Granite(std::string_view name) {
  return {.name = name,
          .model_type = "granitemoehybrid",
          .names = kGraniteNames,
          .experts = {.prefix = "block_sparse_moe.experts."},
          .interleaves_heads = true,
          .is_hybrid = true,
          .field_tensors = kRopeTensors,
          .read = ReadGranite};
}
constexpr Architecture Qwen35(std::string_view name, std::string_view model_type) {
  return {.name = name,
          .model_type = model_type,
          .names = kQwen35Names,
          .tiles_value_heads = true,
          .adds_one_to_norms = true,
          .is_hybrid = true,
          .read = ReadQwen35};
}
constexpr Architecture NemotronH(std::string_view name) {
  return {.name = name,
          .model_type = "nemotron_h",
          .names = kNemotronNames,
          .experts = {.prefix = "mixer.experts."},
          .is_hybrid = true,
          .read = ReadNemotronH};
}

constexpr Architecture kHybrids[] = {Granite("granite"),
                                     Granite("granitemoe"),
                                     Granite("granitehybrid"),
                                     Qwen35("qwen35", "qwen3_5_text"),
                                     Qwen35("qwen35moe", "qwen3_5_moe_text"),
                                     NemotronH("nemotron_h"),
                                     NemotronH("nemotron_h_moe"),
                                     {.name = "kimi-linear",
                                      .model_type = "kimi_linear",
                                      .names = kKimiNames,
                                      .experts = {"block_sparse_moe.experts.", "w1.", "w3.", "w2."},
                                      .is_hybrid = true,
                                      .read = ReadKimiLinear}};

}  // namespace

std::span<const Architecture> HybridArchitectures() { return kHybrids; }

}  // namespace ovq::model
