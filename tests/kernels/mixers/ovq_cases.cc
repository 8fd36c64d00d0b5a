#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

const MixerCases kOvq(AlsoInInt8(AttentionCases("ovq_attention", [](const AttentionCaseShape& s,
                                                                    MixerCase& c) {
  absl::StrAppend(&c.name, "L", s.chunk_len, "N", s.slots);
  c.section = {{"chunk_size", s.chunk_len}};
  c.slot_cap = s.slots;
  if (s.n_heads == 4) c.slot_shares = {0.25, 1.75};
})));

// A case with flags given by their first letters: normalize_centroids, min_state_size,
// counts_for_rates_only, delta_rule, and a variance.
MixerCase Variant(const std::string& flags, int64_t chunk_len, int64_t slots, DType dtype,
                  const std::string& qk_norm = "unit") {
  const auto has = [&](char flag) { return flags.find(flag) != std::string::npos; };
  MixerCase c = {.type = "ovq_attention",
                 .name = absl::StrCat(flags, "_", qk_norm, "L", chunk_len, "N", slots),
                 .model = {{"num_attention_heads", 2},
                           {"head_dim", dtype == DType::kBF16 ? 32 : 20},
                           {"value_head_dim", 24},
                           {"qk_norm", qk_norm}},
                 .section = {{"chunk_size", chunk_len},
                             {"normalize_centroids", has('n')},
                             {"min_state_size", has('m')},
                             {"counts_for_rates_only", has('c')},
                             {"delta_rule", has('d')},
                             {"variance", has('v') ? 1.5 : 0.0}},
                 .weights = {{"self_attn.beta", {6.0f, 1.0f}},
                             {"self_attn.q_norm.weight", {1.0f, 0.2f}},
                             {"self_attn.k_norm.weight", {1.0f, 0.2f}}},
                 .slot_cap = slots,
                 .output_terms = 48,
                 .kv_dtype = dtype,
                 .compute_dtype = dtype};
  if (qk_norm == "l2") c.weights["self_attn.beta"] = {1.5f, 0.3f};
  return c;
}
const MixerCases kVariants(AlsoInInt8({
    Variant("n", 16, 24, DType::kF32),
    Variant("m", 48, 100, DType::kF32),
    Variant("c", 16, 24, DType::kF32),
    Variant("d", 12, 70, DType::kF32),
    Variant("nd", 40, 90, DType::kF32, "l2"),
    Variant("nmcd", 24, 60, DType::kF32),
    Variant("dc", 30, 80, DType::kF32, "layer"),
    Variant("nm", 64, 150, DType::kBF16),
    Variant("cd", 96, 150, DType::kBF16),
    Variant("v", 16, 24, DType::kF32),
    Variant("dv", 40, 90, DType::kF32, "l2"),
    Variant("mv", 64, 150, DType::kBF16),
}));

}  // namespace
}  // namespace ovq::kernels::test
