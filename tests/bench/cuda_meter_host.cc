#include "tests/bench/bench_util.h"
#include "tests/bench/cuda_meter.h"

namespace ovq::bench {

struct Meter::State {
  kernels::DeviceContext& context;
  double begin;
};

GpuFacts DescribeGpu() { return {.name = "host executor", .memory_bytes = size_t{8} << 30}; }

Meter::Meter(kernels::DeviceContext& context) : state_(new State{context, 0}) {}
Meter::~Meter() = default;

void Meter::Start() { state_->begin = Seconds(); }

double Meter::Stop() {
  state_->context.Synchronize();
  return Seconds() - state_->begin;
}

void StartProfiler() {}
void StopProfiler() {}

Ceilings MeasureCeilings(kernels::DeviceContext&) {
  return {.note = "no GPU: figures mean nothing"};
}

}  // namespace ovq::bench
