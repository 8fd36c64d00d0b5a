#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

MixerCase MesaNetCase(const std::string& name, int64_t n_heads, int64_t head_dim,
                      const Fields& section, DType compute = DType::kF32) {
  MixerCase c = {.type = "mesa_net",
                 .name = name,
                 .model = {{"rms_norm_eps", 1e-5}},
                 .section = {{"num_heads", n_heads}, {"head_dim", head_dim}},
                 // Half-lives of a few to some tens of tokens, and a condition number of the system
                 // that does not magnify rounding beyond the test's tolerance.
                 .weights = {{"self_attn.a_proj.bias", {3.0f, 1.0f}},
                             {"self_attn.lambda_params", {1.0f, 0.3f}},
                             {"self_attn.q_conv1d.weight", {0.0f, 0.5f}},
                             {"self_attn.k_conv1d.weight", {0.0f, 0.5f}},
                             {"self_attn.o_norm.weight", {1.0f, 0.2f}}},
                 .output_terms = n_heads * head_dim,
                 .compute_dtype = compute};
  for (const auto& [field, value] : section) c.section[field] = value;
  return c;
}

const MixerCases kMesaNet({
    MesaNetCase("published", 3, 16, {{"max_cg_step_decoding", 1}, {"use_short_conv", true}}),
    // Rows that are no multiple of a vector, every option, and few CG steps, for speed.
    MesaNetCase("odd", 2, 37,
                {{"conv_size", 2},
                 {"conv_bias", true},
                 {"use_output_gate", true},
                 {"lambda_lower_bound", 0.0},
                 {"max_cg_step_training", 7}}),
    MesaNetCase("wide", 1, 128, {{"max_cg_step_training", 3}, {"conv_size", 7}}),
    MesaNetCase("bf16", 2, 64, {{"use_output_gate", true}, {"max_cg_step_training", 5}},
                DType::kBF16),
});

const BenchFields kMesaNetBench("mesa_net", {{"num_heads", 6}, {"head_dim", 128}});

}  // namespace
}  // namespace ovq::kernels::test
