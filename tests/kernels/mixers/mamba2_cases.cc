#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

// dt of about a tenth, so that a state remembers some tens of tokens.
MixerCase Mamba2Case(const std::string& name, int64_t output_terms, const Fields& section,
                     DType compute = DType::kF32) {
  MixerCase c = {.type = "mamba2",
                 .name = name,
                 .model = {{"rms_norm_eps", 1e-3}},
                 .section = {{"num_heads", 4}, {"head_dim", 24}, {"state_size", 16}},
                 .weights = {{"self_attn.dt_bias", {-2.0f, 0.5f}},
                             {"self_attn.A_log", {0.0f, 0.5f}},
                             {"self_attn.D", {1.0f, 0.2f}},
                             {"self_attn.norm.weight", {1.0f, 0.2f}},
                             {"self_attn.conv1d.weight", {0.2f, 0.4f}}},
                 .output_terms = output_terms,
                 .compute_dtype = compute};
  for (const auto& [field, value] : section) c.section[field] = value;
  return c;
}

const MixerCases kMamba2({
    Mamba2Case("groups", 96, {{"n_groups", 2}}),
    Mamba2Case("unnormed", 96, {{"rmsnorm", false}, {"use_conv_bias", false}, {"conv_kernel", 2}}),
    Mamba2Case("norm_first", 66,
               {{"num_heads", 3},
                {"n_groups", 3},
                {"head_dim", 22},
                {"norm_before_gate", true},
                {"D_has_hdim", true},
                {"use_bias", true}}),
    Mamba2Case("bounded_steps", 140,
               {{"num_heads", 2},
                {"head_dim", 70},
                {"state_size", 40},
                {"conv_kernel", 7},
                {"dt_limit", std::vector<double>{0.1, 0.3}},
                {"chunk_size", 256}}),
    Mamba2Case("bf16", 96, {{"state_size", 130}, {"n_groups", 4}, {"use_bias", true}},
               DType::kBF16),
});

const BenchFields kMamba2Bench("mamba2", {{"num_heads", 12}, {"head_dim", 64}, {"state_size", 64}});

}  // namespace
}  // namespace ovq::kernels::test
