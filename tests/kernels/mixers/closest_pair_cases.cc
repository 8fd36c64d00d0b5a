#include <algorithm>

#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

// Slot caps below the length of a test, so that most chunks merge; some are below the chunk's
// length.
const MixerCases kClosestPair(AlsoInInt8(
    AttentionCases("closest_pair_attention", [](const AttentionCaseShape& s, MixerCase& c) {
      const int64_t slots = std::min<int64_t>(s.slots, 130);
      absl::StrAppend(&c.name, "L", s.chunk_len, "N", slots);
      c.section = {{"chunk_size", s.chunk_len}};
      c.slot_cap = slots;
      if (s.n_heads == 4) c.slot_shares = {1.625, 0.375};
      if (s.chunk_len >= 64 && s.value_head_dim <= s.head_dim) {
        absl::StrAppend(&c.name, "apart");
        c.section["pinned_tokens"] = int64_t{5};
        c.section["recent_tokens"] = int64_t{100};
        c.section["value_weight"] = 0.25;
      }
      if (s.value_head_dim <= s.head_dim) return;
      // Keys without a norm, so that K is measured; not where a case sets another norm later.
      c.model["qk_norm"] = "none";
      c.model["score_scale"] = 0.1;
    })));

// Slots whose query heads have betas of their own, and the variance of keys in `field`: in their
// scores or in the distances of pairs.
MixerCase WithVariance(const std::string& field, int64_t chunk_len, int64_t slots,
                       const std::string& qk_norm, DType dtype) {
  MixerCase c = {.type = "closest_pair_attention",
                 .name = absl::StrCat(field, "_", qk_norm, "L", chunk_len, "N", slots),
                 .model = {{"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"head_dim", dtype == DType::kBF16 ? 32 : 20},
                           {"value_head_dim", 24},
                           {"qk_norm", qk_norm}},
                 .section = {{"chunk_size", chunk_len}, {field, 0.75}},
                 .weights = {{"self_attn.beta", {qk_norm == "l2" ? 1.5f : 6.0f, 0.3f}}},
                 .slot_cap = slots,
                 .slot_shares = {1.625, 0.375},
                 .output_terms = 96,
                 .kv_dtype = dtype,
                 .compute_dtype = dtype};
  return c;
}
const MixerCases kClosestPairVariance(AlsoInInt8({
    WithVariance("variance", 16, 48, "unit", DType::kF32),
    WithVariance("variance", 40, 90, "l2", DType::kF32),
    WithVariance("variance", 64, 130, "unit", DType::kBF16),
    WithVariance("merge_variance", 16, 48, "unit", DType::kF32),
    WithVariance("merge_variance", 40, 90, "l2", DType::kF32),
    WithVariance("merge_variance", 64, 130, "unit", DType::kBF16),
}));

}  // namespace
}  // namespace ovq::kernels::test
