#include "model/step_batch.h"

#include "base/check.h"

namespace ovq {

bool StepBatch::is_decode() const {
  return n_rows() == n_seqs() && logit_rows.size() == token_ids.size();
}

void StepBatch::Clear() {
  token_ids.clear();
  row_begin.assign(1, 0);
  start_pos.clear();
  slot_cap.clear();
  state.clear();
  logit_rows.clear();
}

void StepBatch::Add(std::span<const int32_t> tokens, int64_t start, int32_t cap, std::byte* base,
                    int n_logits) {
  Check(!tokens.empty() && n_logits <= static_cast<int>(tokens.size()), "rows of a sequence");
  token_ids.insert(token_ids.end(), tokens.begin(), tokens.end());
  row_begin.push_back(static_cast<int32_t>(token_ids.size()));
  start_pos.push_back(start);
  slot_cap.push_back(cap);
  state.push_back(base);
  for (int row = n_rows() - n_logits; row < n_rows(); ++row) logit_rows.push_back(row);
}

StepSeqs StepBatch::seqs() const {
  return {.row_begin = row_begin, .start_pos = start_pos, .slot_cap = slot_cap, .state = state};
}

}  // namespace ovq
