// The attention of OVQ layers alone, chunk updates included, while long prompts are read.
#pragma once

#include "tests/bench/cuda_report.h"

namespace ovq::bench {

// One layer of `n_heads` heads of 128. The FLOPs counted: scores and weighted values of the live
// centroids and of the chunk's keys up to a row's own, and the products that find a key's nearest
// centroid.
void OvqPrefill(DeviceContext& context, const Scale& scale, int n_heads, const Ceilings& ceilings,
                Report& report);

}  // namespace ovq::bench
