// Parallel loops on the OpenMP team that oneDNN uses too, so that the two never compete for cores.
#pragma once

#include <omp.h>

#include <cstdint>

#include "kernels/common/device.h"

namespace ovq::kernels {

// Calls fn(task, thread) for every task in [0, n_tasks), with thread in [0, n_threads). A task's
// result must not depend on the thread.
template <class Fn>
void ParallelFor(const DeviceContext& context, int64_t n_tasks, Fn&& fn) {
  if (context.n_threads() == 1 || n_tasks == 1) {
    for (int64_t task = 0; task < n_tasks; ++task) fn(task, 0);
    return;
  }
#pragma omp parallel for num_threads(context.n_threads()) schedule(dynamic, 1)
  for (int64_t task = 0; task < n_tasks; ++task) fn(task, omp_get_thread_num());
}

}  // namespace ovq::kernels
