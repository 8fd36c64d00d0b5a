// The threads of a device's parallel loops.
#pragma once

#include <vector>

#include "kernels/common/device.h"

namespace ovq::kernels {

// The ids (gettid) of the threads that ParallelFor uses, the calling one's first. On the thread
// that the context is bound to.
std::vector<int> TeamThreads(const DeviceContext& context);

}  // namespace ovq::kernels
