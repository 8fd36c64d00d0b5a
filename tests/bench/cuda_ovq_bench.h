// Benchmark of OVQ attention alone, including chunk updates, during prefill of long prompts.
#pragma once

#include "tests/bench/cuda_report.h"

namespace ovq::bench {

// One layer of `n_heads` heads of 128. FLOPs counted: for each token, scores and weighted values of
// the live centroids and of its chunk's keys up to itself, and the search for a key's nearest
// centroid.
void OvqPrefill(kernels::DeviceContext& context, const Scale& scale, int n_heads,
                const Ceilings& ceilings, Report& report);

}  // namespace ovq::bench
