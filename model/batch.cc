#include "model/batch.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace ovq::model {
namespace {

// Rates of one thread. The first is a cache's rather than the memory's, because only small batches
// come near the threshold.
constexpr double kBytesPerSecond = 40e9, kProductsPerSecond = 50e9;
// Seconds to call the other threads, and for a token's way to its reader, measured on two cores
// that kernels share with the threads that write answers (docs/performance.md, "A lone stream").
constexpr double kCallSeconds = 20e-6, kWriteSeconds = 30e-6;
// Parallel calls of a layer: into attention, out of it, and what lies between; into the
// feed-forward part and out of it.
constexpr int kCallsPerLayer = 5;

int PaddedSequenceCount(int n_seqs) {
  if (n_seqs <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n_seqs)));
  const int multiple = n_seqs <= 64 ? 8 : 32;
  return (n_seqs + multiple - 1) / multiple * multiple;
}

}  // namespace

bool Batch::is_decode() const {
  return n_tokens() == n_seqs() && logits_indices.size() == token_ids.size();
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

Batch PadBatch(const Batch& batch) {
  Batch padded_batch = batch;
  const int32_t token = 0;  // arbitrary: nobody reads these tokens' results
  for (int i = batch.n_seqs(); i < PaddedSequenceCount(batch.n_seqs()); ++i) {
    padded_batch.Add({&token, 1}, /*start=*/0, /*cap=*/1, /*base=*/nullptr, /*n_logits=*/1);
  }
  return padded_batch;
}

void RoundBounds(kernels::BatchSequences& seqs) {
  uint64_t end = 1024, cap = 64;
  for (int s = 0; s < seqs.n_seqs(); ++s) {
    end = std::max(end, static_cast<uint64_t>(seqs.start_pos[s]) + 1);
    cap = std::max(cap, static_cast<uint64_t>(seqs.slot_cap[s]));
  }
  seqs.end_bound = static_cast<int64_t>(std::bit_ceil(end));
  seqs.slot_cap_bound = static_cast<int32_t>(std::bit_ceil(cap));
}

bool IsFasterOnOneThread(const BatchWork& work, int n_threads) {
  if (n_threads == 1) return true;
  const double alone = work.bytes / kBytesPerSecond + work.products / kProductsPerSecond;
  const int64_t calls =
      kCallsPerLayer * work.n_layers + work.n_expert_calls + 1;  // one for the head
  return alone - alone / n_threads <
         kCallSeconds * static_cast<double>(calls) + kWriteSeconds * work.n_answers;
}

}  // namespace ovq::model
