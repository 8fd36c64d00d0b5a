#include "model/batch.h"

#include "base/check.h"

namespace ovq::model {

bool Batch::is_decode() const {
  return n_tokens() == n_seqs() && logits_indices.size() == token_ids.size();
}

void Batch::Clear() {
  token_ids.clear();
  token_begin.assign(1, 0);
  start_pos.clear();
  slot_cap.clear();
  state.clear();
  logits_indices.clear();
}

void Batch::Add(std::span<const int32_t> tokens, int64_t start, int32_t cap, std::byte* base,
                int n_logits) {
  Check(!tokens.empty() && n_logits <= static_cast<int>(tokens.size()), "rows of a sequence");
  token_ids.insert(token_ids.end(), tokens.begin(), tokens.end());
  token_begin.push_back(static_cast<int32_t>(token_ids.size()));
  start_pos.push_back(start);
  slot_cap.push_back(cap);
  state.push_back(base);
  for (int row = n_tokens() - n_logits; row < n_tokens(); ++row) logits_indices.push_back(row);
}

kernels::BatchSequences Batch::seqs() const {
  return {.token_begin = token_begin, .start_pos = start_pos, .slot_cap = slot_cap, .state = state};
}

}  // namespace ovq::model
