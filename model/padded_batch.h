// Decode steps of few sizes: they are recorded and replayed on CUDA, one recording for each size.
#pragma once

#include "model/batch.h"

namespace ovq {

// With rows that nobody reads after the others, little wasted on them.
Batch PadBatch(const Batch& batch);

// Bounds that many steps share: powers of two.
void RoundBounds(BatchSequences& seqs);

}  // namespace ovq
