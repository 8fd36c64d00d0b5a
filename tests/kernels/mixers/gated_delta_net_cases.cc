#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

// A decay of about a tenth a token, so that a state remembers some tens of tokens.
MixerCase GatedDeltaNetCase(const std::string& name, int64_t output_terms, const Fields& section,
                            DType compute = DType::kF32) {
  MixerCase c = {
      .type = "gated_delta_net",
      .name = name,
      .model = {{"rms_norm_eps", 1e-3}},
      .section = {{"num_heads", 2}, {"head_dim", 16}, {"value_head_dim", 24}, {"conv_size", 4}},
      .weights = {{"self_attn.dt_bias", {-2.0f, 0.5f}},
                  {"self_attn.A_log", {0.0f, 0.5f}},
                  {"self_attn.o_norm.weight", {1.0f, 0.2f}},
                  {"self_attn.q_conv1d.weight", {0.2f, 0.4f}},
                  {"self_attn.k_conv1d.weight", {0.2f, 0.4f}},
                  {"self_attn.v_conv1d.weight", {0.2f, 0.4f}}},
      .output_terms = output_terms,
      .compute_dtype = compute};
  for (const auto& [field, value] : section) c.section[field] = value;
  return c;
}

const MixerCases kGatedDeltaNet({
    GatedDeltaNetCase("shared_keys", 96, {{"num_v_heads", 4}}),
    GatedDeltaNetCase("plain", 48, {{"use_gate", false}, {"use_short_conv", false}}),
    GatedDeltaNetCase("negative", 70,
                      {{"num_heads", 1},
                       {"value_head_dim", 70},
                       {"allow_neg_eigval", true},
                       {"conv_bias", true},
                       {"conv_size", 2}}),
    GatedDeltaNetCase(
        "wide", 128,
        {{"head_dim", 70}, {"value_head_dim", 64}, {"conv_size", 7}, {"conv_bias", true}}),
    GatedDeltaNetCase("channels", 48,
                      {{"num_v_heads", 4},
                       {"decay_rank", 5},
                       {"gate_rank", 7},
                       {"gate_bias", true},
                       {"gate_activation", "sigmoid"}}),
    GatedDeltaNetCase("bounded_channels", 96,
                      {{"head_dim", 33},
                       {"decay_rank", 24},
                       {"decay_lower_bound", -5.0},
                       {"gate_activation", "sigmoid"}},
                      DType::kBF16),
    GatedDeltaNetCase("bf16", 96, {{"head_dim", 33}, {"num_v_heads", 6}, {"value_head_dim", 16}},
                      DType::kBF16),
});

const BenchFields kGatedDeltaNetBench("gated_delta_net", {{"num_heads", 3},
                                                          {"head_dim", 128},
                                                          {"value_head_dim", 256},
                                                          {"conv_size", 4}});

}  // namespace
}  // namespace ovq::kernels::test
