// The shapes that every softmax-type mixer is tested with.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {

struct AttentionCaseShape {
  int64_t n_heads, n_kv_heads, head_dim, value_head_dim;
  int64_t chunk_len, slots, window;
  DType kv_dtype, compute_dtype;
};

inline constexpr AttentionCaseShape kAttentionCaseShapes[] = {
    {2, 2, 32, 32, 16, 24, 16, DType::kF32, DType::kF32},
    {4, 2, 16, 24, 48, 100, 65, DType::kF32, DType::kF32},
    {2, 1, 20, 16, 128, 300, 128, DType::kBF16, DType::kF32},
    {3, 3, 64, 64, 100, 64, 1, DType::kBF16, DType::kBF16},
    {4, 2, 32, 64, 96, 150, 70, DType::kBF16, DType::kBF16},
    {2, 1, 64, 32, 64, 200, 100, DType::kBF16, DType::kBF16},
};

// Options of published models: norms of heads with a scale of the score, or of all heads at once,
// biases, RoPE of some channels or of neighbours, and a gate of the output.
inline MixerCase Gated(MixerCase c, bool all_heads) {
  c.name += all_heads ? "rms_all_heads" : "gated";
  c.model["qk_norm"] = all_heads ? "rms_all_heads" : "rms";
  c.model["qk_norm_weight"] = all_heads ? "plain" : "one_plus";
  c.model["score_scale"] = 0.5;
  c.model["attention_bias"] = c.model["output_gate"] = c.model["output_gate_bias"] = true;
  c.model["rope"] = all_heads ? "interleaved" : "halves";
  c.model["rope_dims"] = 12;
  c.weights["self_attn.q_norm.weight"] =
      c.weights["self_attn.k_norm.weight"] = {all_heads ? 1.0f : 0.0f, 0.2f};
  return c;
}

// Latent attention: values are normed as the beginnings of keys are.
inline MixerCase Latent(MixerCase c) {
  c.name += "latent";
  c.model["qk_norm"] = "none";
  c.model["latent_norm"] = true;
  c.model["latent_norm_eps"] = 1e-3;
  c.model["rope"] = "none";
  c.weights["self_attn.kv_norm.weight"] = {1.0f, 0.2f};
  return c;
}

// Queries that grow with the position, several times within a test.
inline MixerCase Growing(MixerCase c) {
  c.name += "grows";
  c.model["rope"] = "none";
  c.model["attn_scale"] = 0.5;
  c.model["floor_scale"] = int64_t{13};
  return c;
}

// A case of every shape; `finish` sets what the mixer adds to the heads.
template <class Fn>
std::vector<MixerCase> AttentionCases(const std::string& type, Fn&& finish) {
  std::vector<MixerCase> cases;
  for (const AttentionCaseShape& s : kAttentionCaseShapes) {
    MixerCase c = {.type = type,
                   .name = absl::StrCat("h", s.n_heads, "g", s.n_kv_heads, "d", s.head_dim, "v",
                                        s.value_head_dim),
                   .model = {{"num_attention_heads", s.n_heads},
                             {"num_key_value_heads", s.n_kv_heads},
                             {"head_dim", s.head_dim},
                             {"value_head_dim", s.value_head_dim}},
                   .section = {},
                   .weights = {{"self_attn.beta", {6.0f, 1.0f}}},
                   .slot_cap = 0,
                   .output_terms = s.n_heads * s.value_head_dim,
                   .kv_dtype = s.kv_dtype,
                   .compute_dtype = s.compute_dtype};
    finish(s, c);
    cases.push_back(c);
    // Once more with everything that AttentionInput allows.
    if (&s == &kAttentionCaseShapes[2] || &s == &kAttentionCaseShapes[4]) {
      cases.push_back(Gated(c, /*all_heads=*/s.head_dim > 20));
    }
    if (&s == &kAttentionCaseShapes[2] || &s == &kAttentionCaseShapes[5])
      cases.push_back(Latent(c));
    if (&s == &kAttentionCaseShapes[0] || &s == &kAttentionCaseShapes[3])
      cases.push_back(Growing(c));
    if (&s != &kAttentionCaseShapes[1]) continue;
    c.name += "shifted";
    c.model["token_shift"] = true;
    c.model["qk_norm"] = "layer";
    c.model.erase("score_scale");  // the norm has its own
    c.model["rope"] = "pairs";
    c.model["rope_dims"] = s.head_dim / 2;
    c.weights["self_attn.q_norm.weight"] = c.weights["self_attn.k_norm.weight"] = {1.0f, 0.2f};
    c.weights["self_attn.v_shift"] = {0.5f, 0.2f};
    cases.push_back(std::move(c));
  }
  return cases;
}

// Adds each case with int8 state, and float32 compute where it was float32.
inline std::vector<MixerCase> AlsoInInt8(std::vector<MixerCase> cases) {
  const size_t n = cases.size();
  for (size_t i = 0; i < n; ++i) {
    cases.push_back(cases[i]);
    cases.back().kv_dtype = DType::kI8;
  }
  return cases;
}

}  // namespace ovq::kernels::test
