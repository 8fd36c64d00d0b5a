// Launches with a thread block for each sequence in y or z of the grid, which has room for 65,535.
#pragma once

#include <algorithm>

#include "kernels/mixers/batch_sequences.h"

namespace ovq::kernels::cuda {

inline constexpr int kMostGridSequences = 65'535;

// Calls launch(n, seqs) for all sequences of the batch, n of them at a time; `seqs` begins with the
// first of these. Positions are still those of the batch's tokens.
template <class Fn>
void ForSequenceParts(const BatchSequences& batch, Fn launch) {
  for (int begin = 0; begin < batch.n_seqs(); begin += kMostGridSequences) {
    DeviceSequences seqs = batch.device;
    seqs.token_begin += begin;
    seqs.start_pos += begin;
    seqs.state += begin;
    launch(static_cast<unsigned>(std::min(kMostGridSequences, batch.n_seqs() - begin)), seqs);
  }
}

}  // namespace ovq::kernels::cuda
