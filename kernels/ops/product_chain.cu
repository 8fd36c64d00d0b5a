#include "base/check.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/product_chain.cuh"
#include "kernels/ops/product_chain.h"

namespace ovq::kernels::cuda {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// As few tiles a block as let all blocks run at once on different multiprocessors; one where even
// the most tiles would not, so that a multiprocessor has several blocks, which hide each other's
// copies. No tile: shared memory is too small.
ChainShape ShapeOf(DeviceContext& context, int64_t in, int64_t out, int n_rows) {
  ChainShape shape = {static_cast<int>(CeilDiv(in, kLinkInputs)), 1};
  const CudaDevice& device = context.cuda();
  if (shape.shared_bytes(n_rows) > device.max_shared_bytes) shape.n_tiles = 0;
  for (ChainShape larger = shape; larger.n_tiles > 0 && larger.n_tiles <= kMaxChainTiles &&
                                  larger.shared_bytes(n_rows) <= device.max_shared_bytes;
       larger.n_tiles *= 2) {
    if (CeilDiv(out, larger.outs()) <= device.n_multiprocessors) return larger;
  }
  return shape;
}

template <int kRows>
void LaunchRows(DeviceContext& context, const ChainTask& task) {
  const ChainShape shape = ShapeOf(context, task.in, task.out, kRows);
  LaunchEarly(context, ChainKernel<kRows>,
              dim3(static_cast<unsigned>(CeilDiv(task.out, shape.outs()))), dim3(kChainThreads),
              shape.shared_bytes(kRows), task, shape);
}

}  // namespace

bool FitsChain(DeviceContext& context, int64_t in, int64_t out) {
  return in % kVectorInputs == 0 && ShapeOf(context, in, out, kMaxChainRows).n_tiles > 0;
}

void LaunchChain(DeviceContext& context, const ChainTask& task) {
  Check(task.n <= kMaxChainRows, "LaunchChain: few rows");
  if (task.n == 1) return LaunchRows<1>(context, task);
  if (task.n <= 8) return LaunchRows<8>(context, task);
  LaunchRows<16>(context, task);
}

}  // namespace ovq::kernels::cuda
