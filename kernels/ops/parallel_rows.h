// Splits the rows of an operation over the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/common/parallel.h"

namespace ovq::kernels {

// Calls fn(begin, end) on disjoint ranges that cover [0, n_rows); row_work is in multiply-adds or
// the like. Small inputs stay on the calling thread: waking the team costs some microseconds.
template <class Fn>
void ParallelRows(const DeviceContext& context, int64_t n_rows, int64_t row_work, Fn&& fn) {
  constexpr int64_t kMinTaskWork = 32 << 10;
  const int64_t by_work = n_rows * row_work / kMinTaskWork;
  const int64_t n_tasks = std::min<int64_t>({n_rows, by_work, 4 * int64_t{context.n_threads()}});
  if (n_tasks <= 1) {
    if (n_rows > 0) fn(int64_t{0}, n_rows);
    return;
  }
  ParallelFor(context, n_tasks, [&](int64_t task, int) {
    fn(n_rows * task / n_tasks, n_rows * (task + 1) / n_tasks);
  });
}

}  // namespace ovq::kernels
