#include "model/padded_batch.h"

#include <algorithm>
#include <bit>

namespace ovq::model {
namespace {

int PaddedSequenceCount(int n_seqs) {
  if (n_seqs <= 8) return static_cast<int>(std::bit_ceil(static_cast<unsigned>(n_seqs)));
  const int multiple = n_seqs <= 64 ? 8 : 32;
  return (n_seqs + multiple - 1) / multiple * multiple;
}

}  // namespace

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

}  // namespace ovq::model
