#include "kernels/common/team.h"

#include <omp.h>
#include <unistd.h>

#include <cstddef>

namespace ovq::kernels {

std::vector<int> TeamThreads(const DeviceContext& context) {
  std::vector<int> ids(static_cast<size_t>(context.n_threads()));
#pragma omp parallel num_threads(context.n_threads())
  ids[static_cast<size_t>(omp_get_thread_num())] = gettid();
  std::erase(ids, 0);  // where the system has no more threads
  return ids;
}

}  // namespace ovq::kernels
