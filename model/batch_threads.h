// How many threads a step on the CPU is worth.
#pragma once

#include <cstdint>

namespace ovq {

struct BatchWork {
  double bytes = 0;     // of weights and states that it reads
  double products = 0;  // multiplications of its rows with weights
  int n_layers = 0;
  int n_answers = 1;  // sequences with rows in it
};

// Whether answers come sooner if one thread does a step than if `n_threads` share it: each layer
// calls for the others several times, each time they may have to be woken, and who writes the
// answers of the last step wants a core meanwhile.
bool IsFasterOnOneThread(const BatchWork& work, int n_threads);

}  // namespace ovq
