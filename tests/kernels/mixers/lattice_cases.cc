#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

MixerCase LatticeCase(const std::string& name, int64_t n_heads, int64_t n_slots,
                      int64_t value_head_dim, const Fields& section, DType compute = DType::kF32) {
  MixerCase c = {.type = "lattice",
                 .name = name,
                 // Far above the rounding errors of the output, which the norm magnifies where it
                 // cancels.
                 .model = {{"rms_norm_eps", 1e-2}},
                 .section = {{"num_heads", n_heads},
                             {"num_slots", n_slots},
                             {"value_head_dim", value_head_dim}},
                 // A token removes a few percent.
                 .weights = {{"self_attn.A_log", {0.0f, 0.5f}},
                             {"self_attn.dt_bias", {-4.0f, 1.0f}},
                             {"self_attn.q_conv1d.weight", {0.0f, 0.5f}},
                             {"self_attn.k_conv1d.weight", {0.0f, 0.5f}},
                             {"self_attn.o_norm.weight", {1.0f, 0.2f}}},
                 .output_terms = n_heads * value_head_dim,
                 .compute_dtype = compute};
  for (const auto& [field, value] : section) c.section[field] = value;
  // The encoding loss has a curvature of |v|^2: with large values updates overshoot, and any
  // rounding difference grows.
  if (c.section["objective"] == Attrs::Value("enc")) {
    c.weights["self_attn.v_proj.weight"] = {0.0f, 0.02f};
  }
  // Rounding differences also grow if a threshold leaves next to nothing of a slot.
  if (c.section["regularization"] == Attrs::Value("l1")) {
    c.weights["self_attn.dt_bias"] = {-8.0f, 0.5f};
  }
  return c;
}

const MixerCases kLattice({
    LatticeCase("published", 3, 16, 20, {}),
    LatticeCase("plain", 2, 40, 33,
                {{"use_forget_gate", false}, {"conv_bias", true}, {"conv_size", 2}}),
    LatticeCase("encodes", 2, 12, 64, {{"objective", "enc"}, {"conv_size", 7}}),
    LatticeCase("similar", 1, 33, 130, {{"objective", "sim"}}),
    LatticeCase("lengths_decay", 2, 16, 20, {{"normalized_projection", false}}),
    LatticeCase(
        "lengths_grow", 2, 16, 24,
        {{"normalized_projection", false}, {"use_forget_gate", false}, {"objective", "sim"}}),
    LatticeCase("thresholds", 2, 16, 20, {{"regularization", "l1"}}),
    LatticeCase("thresholds_lengths", 2, 16, 20,
                {{"regularization", "l1"}, {"normalized_projection", false}, {"objective", "enc"}}),
    LatticeCase("bf16", 2, 64, 64, {}, DType::kBF16),
});

const BenchFields kLatticeBench("lattice",
                                {{"num_heads", 6}, {"num_slots", 128}, {"value_head_dim", 128}});

}  // namespace
}  // namespace ovq::kernels::test
