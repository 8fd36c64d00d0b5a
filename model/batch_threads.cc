#include "model/batch_threads.h"

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

}  // namespace

bool IsFasterOnOneThread(const BatchWork& work, int n_threads) {
  if (n_threads == 1) return true;
  const double alone = work.bytes / kBytesPerSecond + work.products / kProductsPerSecond;
  const int calls = kCallsPerLayer * work.n_layers + 1;  // one for the head
  return alone - alone / n_threads < kCallSeconds * calls + kWriteSeconds * work.n_answers;
}

}  // namespace ovq::model
