#include "model/batch_threads.h"

namespace ovq {
namespace {

// Of one thread; a cache's speed more than the memory's, as small steps are what counts here.
constexpr double kBytesPerSecond = 40e9, kProductsPerSecond = 50e9;
// Of two cores that kernels and the threads that write answers share (docs/performance.md, "A lone
// stream"): what a call for the others takes, and what a token's way to its reader.
constexpr double kCallSeconds = 20e-6, kWriteSeconds = 30e-6;
// Into attention, out of it, and what lies between; into the feed-forward part and out of it.
constexpr int kCallsPerLayer = 5;

}  // namespace

bool IsFasterOnOneThread(const BatchWork& work, int n_threads) {
  if (n_threads == 1) return true;
  const double alone = work.bytes / kBytesPerSecond + work.products / kProductsPerSecond;
  const int calls = kCallsPerLayer * work.n_layers + 1;  // one for the head
  return alone - alone / n_threads < kCallSeconds * calls + kWriteSeconds * work.n_answers;
}

}  // namespace ovq
