// Padding of decode batches to few sizes: CUDA records each size once as a graph and replays it.
#pragma once

#include "model/batch.h"

namespace ovq::model {

// A copy of the batch with unused tokens at its end, few in proportion.
Batch PadBatch(const Batch& batch);

// Rounds the bounds up to powers of two, so that many batches share a recording.
void RoundBounds(kernels::BatchSequences& seqs);

}  // namespace ovq::model
