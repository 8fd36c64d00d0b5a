// Clock and performance ceilings of a GPU. cuda_meter.cu implements them on CUDA;
// cuda_meter_host.cc
// replaces it where the host executor runs the kernels, whose times mean nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/common/device.h"

namespace ovq::bench {

struct GpuFacts {
  std::string name;
  size_t memory_bytes = 0;
  size_t l2_bytes = 0;
  int n_multiprocessors = 0;
  int driver_version = 0;  // in CUDA's numbering: 13000
  int runtime_version = 0;
};
GpuFacts DescribeGpu();

// Measures seconds between two points of a context's stream.
class Meter {
 public:
  explicit Meter(kernels::DeviceContext& context);
  ~Meter();
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  void Start();
  double Stop();  // waits for all work since Start

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Begins and ends what a profiler looks at (`ncu --profile-from-start off`).
void StartProfiler();
void StopProfiler();

// Highest rates of this GPU, each the median of many passes over random data that no cache holds.
struct Ceilings {
  double copy_bytes_per_s = 0;    // device to device, bytes read plus bytes written
  double read_bytes_per_s = 0;    // by a kernel that reads and writes nothing
  double matmul_flops_per_s = 0;  // cuBLAS, 8192 x 8192 x 8192 in bfloat16; 0 if there is none
  std::string note;               // reason if a figure is missing
};
Ceilings MeasureCeilings(kernels::DeviceContext& context);

}  // namespace ovq::bench
