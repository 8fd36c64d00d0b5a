// Benchmark of products with weights alone.
#pragma once

#include <span>

#include "tests/bench/cuda_report.h"
#include "tests/bench/random_model.h"

namespace ovq::bench {

// Times y = x W^T of a layer's products and of the head, in bfloat16, for each number of rows. The
// weights come from memory: as many copies of them are used in turn as no cache holds.
void Products(kernels::DeviceContext& context, const ModelShape& shape, std::span<const int> rows,
              const Ceilings& ceilings, Report& report);

}  // namespace ovq::bench
