// Decode steps of few sizes: they are recorded and replayed on CUDA, one recording for each size.
#pragma once

#include "model/step_batch.h"

namespace ovq {

// With rows that nobody reads after the others, little wasted on them.
StepBatch Padded(const StepBatch& batch);

// Bounds that many steps share: powers of two.
void RoundBounds(StepSeqs& seqs);

}  // namespace ovq
