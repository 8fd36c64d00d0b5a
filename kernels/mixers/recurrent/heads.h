// Parallel loop over the heads of a batch's sequences, which are independent of each other.
#pragma once

#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/mixers/mixer.h"

namespace ovq::kernels {

// Calls fn(sequence, head) for every head of every sequence. A call is one task and handles all of
// the sequence's tokens in the batch.
template <class Fn>
void ForEachHead(const DeviceContext& context, const BatchSequences& seqs, int n_heads, Fn&& fn) {
  ParallelFor(context, int64_t{seqs.n_seqs()} * n_heads, [&](int64_t task, int) {
    fn(static_cast<int>(task / n_heads), static_cast<int>(task % n_heads));
  });
}

}  // namespace ovq::kernels
