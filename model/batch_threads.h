// Chooses how many threads run a batch on the CPU.
#pragma once

#include <cstdint>

namespace ovq::model {

struct BatchWork {
  double bytes = 0;     // weights and states that the batch reads
  double products = 0;  // multiplications of its tokens with weights
  int n_layers = 0;
  int n_answers = 1;  // sequences in the batch
};

// Predicts whether one thread finishes a batch sooner than `n_threads` that share it. Each layer
// calls the other threads several times, they may have to be woken each time, and the threads that
// write the answers of the last batch need a core meanwhile.
bool IsFasterOnOneThread(const BatchWork& work, int n_threads);

}  // namespace ovq::model
