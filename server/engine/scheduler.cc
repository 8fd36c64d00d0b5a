#include "server/engine/scheduler.h"

#include <algorithm>

namespace ovq {

std::vector<PlanItem> PlanStep(std::span<const Candidate> candidates, int32_t max_rows,
                               int64_t turn) {
  std::vector<int> decoding;  // indices into candidates
  std::vector<int> prefilling;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].paused) continue;
    (candidates[i].prefill_tokens == 0 ? decoding : prefilling).push_back(static_cast<int>(i));
  }
  int32_t decode_rows = max_rows;
  if (!prefilling.empty() && max_rows > 1) {
    decode_rows -= std::max<int32_t>(1, max_rows / kPrefillShare);
  }

  std::vector<PlanItem> plan;
  const size_t n_decoding = decoding.size();
  const size_t n_chosen = std::min(n_decoding, static_cast<size_t>(decode_rows));
  // Consecutive turns continue where the last one stopped, round and round.
  const size_t first =
      n_chosen == n_decoding ? 0 : static_cast<uint64_t>(turn) % n_decoding * n_chosen % n_decoding;
  for (size_t i = 0; i < n_chosen; ++i) {
    plan.push_back({candidates[decoding[(first + i) % n_decoding]].id, 1});
  }

  std::stable_sort(prefilling.begin(), prefilling.end(),
                   [&](int a, int b) { return candidates[a].arrival < candidates[b].arrival; });
  int64_t left = max_rows - static_cast<int64_t>(n_chosen);
  for (int i : prefilling) {
    if (left == 0) break;
    const int64_t n_rows = std::min(left, candidates[i].prefill_tokens);
    plan.push_back({candidates[i].id, static_cast<int32_t>(n_rows)});
    left -= n_rows;
  }
  return plan;
}

}  // namespace ovq
