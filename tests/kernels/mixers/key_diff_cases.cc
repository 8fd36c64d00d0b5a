#include <algorithm>

#include "tests/kernels/mixers/attention_cases.h"

namespace ovq::kernels::test {
namespace {

// Slot caps below the length of a test, so that most chunks evict; some are below the chunk's
// length.
const MixerCases kKeyDiff(
    AlsoInInt8(AttentionCases("key_diff_attention", [](const AttentionCaseShape& s, MixerCase& c) {
      const int64_t slots = std::min<int64_t>(s.slots, 130);
      absl::StrAppend(&c.name, "L", s.chunk_len, "N", slots);
      c.section = {{"chunk_size", s.chunk_len}};
      c.slot_cap = slots;
      if (s.n_heads == 4) c.slot_shares = {1.625, 0.375};
      if (s.chunk_len % 3 == 0) {
        c.section["pinned_tokens"] = int64_t{7};
        c.section["recent_tokens"] = int64_t{40};
      }
      if (s.value_head_dim <= s.head_dim) return;
      // Keys of unequal norms; not where a case sets another norm later.
      c.model["qk_norm"] = "none";
      c.model["score_scale"] = 0.1;
    })));

// The least share of a small cap, which leaves a head the least slots that it can have.
const MixerCases kLeastShare({{.type = "key_diff_attention",
                               .name = "least_share",
                               .model = {{"num_attention_heads", 2}, {"head_dim", 20}},
                               .section = {{"chunk_size", 4}},
                               .weights = {{"self_attn.beta", {6.0f, 1.0f}}},
                               .slot_cap = 5,
                               .slot_shares = {1.0 / 1024},
                               .output_terms = 40}});

}  // namespace
}  // namespace ovq::kernels::test
