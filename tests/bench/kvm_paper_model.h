// Writes a checkpoint in the KVM paper's format with random BF16 weights, in one of its published
// shapes (configs/prolong/{120M,350M} of its code). Sizes and fields are as published; the contents
// are meaningless, so it is generated and never committed.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/bench/random_model.h"

namespace ovq::bench {

struct KvmPaperShape {
  int n_layers, width, n_heads;
  double residual_scale;
};
inline bool IsKvmPaperShape(const std::string& name) {
  return name == "kvm-120m" || name == "kvm-350m";
}

// mixer: a published configuration, without "_wd": kvm, kvm_sqrt16, kvm_swa_saturate1024,
// ovq_swa_ts_c256_s1024, gptalpha, gptalpha_nope_swa_rope, gptalpha_halfrope_swa_rope.
inline nlohmann::json KvmPaperConfig(const KvmPaperShape& shape, const std::string& mixer) {
  const auto has = [&](const char* part) { return mixer.find(part) != std::string::npos; };
  const std::string main = mixer.substr(0, mixer.find('_'));
  if (main != "kvm" && main != "ovq" && main != "gptalpha") {
    std::fprintf(stderr, "--mixer: expected a configuration like kvm_sqrt16, got %s\n",
                 mixer.c_str());
    std::exit(2);
  }
  nlohmann::json config = {{"model_type", "rwkv7backbone"},
                           {"dtype", "bfloat16"},
                           {"vocab_size", 50304},
                           {"hidden_size", shape.width},
                           {"num_hidden_layers", shape.n_layers},
                           {"num_attention_heads", shape.n_heads},
                           {"d_qk_head", 128},
                           {"d_v_head", 128},
                           {"ffn_expansion", 4.0},
                           {"token_mixer", main},
                           {"residual_scale", shape.residual_scale},
                           {"use_tokenshift_att", 1},
                           {"use_tokenshift_ffn", true},
                           {"use_value_residual", 1},
                           {"chunk_len", 256},
                           {"n_bswa_chunks", 2},
                           {"sink_len", 1},
                           {"rope_partial_dim", has("nope") || main == "ovq" ? 0 : 64}};
  if (has("swa")) {
    config.update(
        {{"alt_token_mixer", "swa"}, {"alt_layer_every", 2}, {"alt_rope_partial_dim", 128}});
  }
  if (main == "ovq") config.update({{"ovq_chunk_size", 256}, {"ovq_max_centroids", 1024}});
  if (main == "kvm") config.update({{"state_min_len", 256}, {"n_max_d_chunks", 1}});
  if (has("sqrt16")) {
    config.update({{"state_budget_mode", "power_law"},
                   {"state_growth_factor", 16.0},
                   {"state_growth_exponent", 0.5},
                   {"n_max_d_chunks", 10000}});
  }
  if (has("saturate1024")) {
    config.update({{"state_budget_mode", "kvm_saturation"},
                   {"state_saturation_n", 1024},
                   {"state_min_len", 1},
                   {"n_max_d_chunks", 10000}});
  }
  return config;
}

inline void WriteKvmPaperLayer(RandomModelWriter& weights, const std::string& layer,
                               const KvmPaperShape& shape, const std::string& mixer) {
  const int64_t d = shape.width, heads = int64_t{shape.n_heads} * 128, rank = 32;
  const auto norm = [&](const std::string& name, int64_t width) {
    weights.Add(layer + name + ".weight", {width}, 1, 0.02f);
    weights.Add(layer + name + ".bias", {width}, 0, 0.02f);
  };
  norm("ln_attn", d);
  norm("ln_mlp", d);
  weights.Add(layer + "mlp.c_fc.weight", {4 * d, d}, 0, 0.03f);
  weights.Add(layer + "mlp.c_proj.weight", {d, 4 * d}, 0, 0.02f);
  weights.Add(layer + "mlp.x_k", {1, 1, d}, 0.5f, 0.2f);
  for (const char* name : {"q", "k", "v"}) {
    weights.Add(layer + "attn.c_" + name + ".weight", {heads, d}, 0, 0.03f);
    weights.Add(layer + "attn.x_" + name, {heads}, 0.5f, 0.2f);
  }
  weights.Add(layer + "attn.c_proj.weight", {d, heads}, 0, 0.03f);
  weights.Add(layer + "attn.v_gate0", {1, 1, heads}, 0, 1);
  weights.Add(layer + "attn.v_gate1.weight", {rank, d}, 0, 0.03f);
  weights.Add(layer + "attn.v_gate2.weight", {heads, rank}, 0, 0.1f);
  if (mixer == "ovq") return weights.Add(layer + "attn.beta", {shape.n_heads}, 1, 0.1f);
  norm("attn.ln_q", 128);
  norm("attn.ln_k", 128);
  if (mixer != "kvm") return;
  norm("attn.ln_s_k", 128);
  weights.Add(layer + "attn.key_weighting.weight", {shape.n_heads, d}, 0, 0.03f);
  weights.Add(layer + "attn.front_head_temp", {shape.n_heads}, 1, 0.1f);
  weights.Add(layer + "attn.state_head_temp", {shape.n_heads}, 1, 0.1f);
}

inline void WriteKvmPaperModel(const std::filesystem::path& folder, const std::string& shape_name,
                               const std::string& mixer) {
  const KvmPaperShape shape =
      shape_name == "kvm-120m" ? KvmPaperShape{12, 768, 6, 1.0} : KvmPaperShape{24, 1024, 8, 0.5};
  const nlohmann::json config = KvmPaperConfig(shape, mixer);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config.dump(1);
  RandomModelWriter weights;
  const int64_t d = shape.width;
  for (const char* name : {"ln_emb", "ln_head"}) {
    const std::string prefix = std::string("transformer.") + name;
    weights.Add(prefix + ".weight", {d}, 1, 0.02f);
    weights.Add(prefix + ".bias", {d}, 0, 0.02f);
  }
  weights.Add("transformer.wte.weight", {50304, d}, 0, 1);
  for (int i = 0; i < shape.n_layers; ++i) {
    const bool alternate = config.contains("alt_layer_every") && i % 2 == 0;
    WriteKvmPaperLayer(weights, "transformer.h." + std::to_string(i) + ".", shape,
                       alternate ? "swa" : config["token_mixer"].get<std::string>());
  }
  weights.Add("lm_head.weight", {50304, d}, 0, 0.03f);
  weights.Write(folder / "model.safetensors");
}

}  // namespace ovq::bench
