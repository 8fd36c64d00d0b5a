#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

// All budgets in turn, with one flag more or less each time.
const MixerCases kKvm([] {
  int number = 0;
  return AttentionCases("kvm_attention", [&](const AttentionCaseShape& s, MixerCase& c) {
    static constexpr const char* kBudgets[] = {"power_law", "kvm_saturation", "fixed"};
    const int i = number++;
    absl::StrAppend(&c.name, "W", s.chunk_len, "n", s.slots, kBudgets[i % 3]);
    c.model["num_key_value_heads"] = s.n_heads;
    c.slot_cap = s.slots;
    // A window short enough that several chunks leave it.
    c.section = {{"chunk_len", s.chunk_len},
                 {"n_bswa_chunks", s.chunk_len > 64 ? 1 : 3 - i % 2},
                 {"state_budget_mode", kBudgets[i % 3]},
                 {"n_max_d_chunks", i % 3 == 2 ? 1 : 100},
                 {"state_growth_factor", 4},
                 {"state_saturation_n", 120},
                 {"state_min_len", i % 3 == 2 ? s.chunk_len : 1},
                 {"masked_dims", s.head_dim / 2},
                 {"sink_len", i % 3},
                 {"use_vlens", i != 2},
                 {"use_head_temps", i != 1},
                 {"use_merge_gate_keys", i != 3 && i != 5},
                 {"use_merge_gate_values", i != 5},
                 {"apply_merge_gate_to_initial_state", i == 4},
                 {"apply_merge_gate_to_appends", i != 1}};
    // Rows' keys have a norm of sqrt(d), where other mixers' have 1.
    c.weights["self_attn.beta"] = {1.5f, 0.3f};
    c.weights["self_attn.ln_s_k.weight"] = {1.0f, 0.2f};
    c.weights["self_attn.front_head_temp"] = {1.0f, 0.2f};
    c.weights["self_attn.state_head_temp"] = {1.0f, 0.2f};
  });
}());

MixerCase Small(const std::string& name, int64_t slot_cap, const Fields& section) {
  MixerCase c = {.type = "kvm_attention",
                 .name = name,
                 .model = {{"num_attention_heads", 2}, {"head_dim", 24}, {"value_head_dim", 40}},
                 .section = {{"chunk_len", 12},
                             {"n_max_d_chunks", 100},
                             {"state_budget_mode", "power_law"},
                             {"state_growth_factor", 6},
                             {"masked_dims", 5}},
                 .weights = {{"self_attn.beta", {1.5f, 0.3f}},
                             {"self_attn.ln_s_k.weight", {1.0f, 0.2f}},
                             {"self_attn.front_head_temp", {1.0f, 0.2f}},
                             {"self_attn.state_head_temp", {1.0f, 0.2f}}},
                 .slot_cap = slot_cap,
                 .output_terms = 80};
  for (const auto& [field, value] : section) c.section[field] = value;
  return c;
}

// A chunk that does not divide a block, many times in a test's tokens.
const MixerCases kSmall({
    Small("grows", 100, {}),
    Small("cap_below_a_chunk", 5, {{"sink_len", 7}, {"apply_merge_gate_to_initial_state", true}}),
    Small("counts_merges", 100,
          {{"state_budget_mode", "fixed"}, {"use_vlens", false}, {"n_bswa_chunks", 3}}),
    Small("rounds_values", 100, {{"values_round_to_bfloat16", true}, {"n_bswa_chunks", 7}}),
    Small("plain", 70,
          {{"use_merge_gate_keys", false},
           {"use_merge_gate_values", false},
           {"use_head_temps", false},
           {"sink_len", 0},
           {"n_bswa_chunks", 1}}),
});

}  // namespace
}  // namespace ovq::kernels::test
