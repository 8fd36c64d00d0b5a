#include <initializer_list>

#include "base/check.h"
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/ops/cuda/product_chain.cuh"
#include "kernels/ops/product_chain.h"

namespace ovq::kernels::cuda {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Chooses the fewest tiles a block with which all blocks run at once on different multiprocessors;
// one where even the most tiles would not do, so that a multiprocessor has several blocks, which
// hide each other's copies. No tile: shared memory is too small.
template <int kRows>
ChainShape ChooseShape(DeviceContext& context, int64_t in, int64_t out, bool has_norm) {
  const CudaDevice& device = context.cuda();
  const auto fits = [&](ChainShape shape) {
    return Chain<kRows>::SharedBytes(shape, has_norm) <= device.max_shared_bytes;
  };
  const int64_t n_tiles = CeilDiv(out, kChainTile);
  ChainShape shape = {static_cast<int>(CeilDiv(in, kLinkInputs)), 1};
  if (!fits(shape)) return {shape.n_links, 0};
  for (ChainShape larger = shape; larger.n_tiles <= kMaxChainTiles && fits(larger);
       larger.n_tiles *= 2) {
    if (CeilDiv(n_tiles, larger.n_tiles) <= device.n_multiprocessors) return larger;
  }
  return shape;
}

template <int kRows>
void LaunchRows(DeviceContext& context, const ChainTask& task) {
  const bool has_norm = task.norm.x != nullptr;
  const ChainShape shape = ChooseShape<kRows>(context, task.in, task.out, has_norm);
  const int64_t n_octets =
      task.swiglu == nullptr ? CeilDiv(task.out, kOctet) : 2 * CeilDiv(task.out / 2, kOctet);
  LaunchEarly(context, ChainKernel<kRows>,
              dim3(static_cast<unsigned>(CeilDiv(n_octets, 2 * shape.n_tiles))),
              dim3(Chain<kRows>::kThreads), Chain<kRows>::SharedBytes(shape, has_norm), task,
              shape);
}

}  // namespace

bool FitsChain(DeviceContext& context, int64_t in, int64_t out) {
  return in % kVectorInputs == 0 &&
         ChooseShape<kMaxChainRows>(context, in, out, /*has_norm=*/true).n_tiles > 0;
}

void LaunchChain(DeviceContext& context, const ChainTask& task) {
  Check(task.n <= kMaxChainRows, "LaunchChain: few rows");
  if (task.n == 1) return LaunchRows<1>(context, task);
  if (task.n <= 8) return LaunchRows<8>(context, task);
  LaunchRows<16>(context, task);
}

bool ApplyChain(DeviceContext& context, TensorView weights, const ProductRows& x, TensorView y,
                ProductEnd end) {
  const bool is_swiglu = end == ProductEnd::kSwiGlu;
  if (x.x.shape[0] > kMaxChainRows || (is_swiglu && y.dtype != DType::kBF16)) return false;
  ChainTask task = {.weights = weights.as<BF16>(),
                    .x = x.x.as<BF16>(),
                    .y = is_swiglu ? nullptr : y.as<float>(),
                    .n = x.x.shape[0],
                    .in = weights.shape[1],
                    .out = weights.shape[0],
                    .accumulate = end == ProductEnd::kAdd,
                    .swiglu = is_swiglu ? y.as<BF16>() : nullptr};
  if (x.norm) {
    if (x.norm->bias.data != nullptr) return false;
    task.norm = {.is_centered = false,
                 .n_rows = task.n,
                 .width = task.in,
                 .x = x.h.as<float>(),
                 .rows = x.h_rows.empty() ? nullptr : x.h_rows.data(),
                 .weight = x.norm->weight.as<float>(),
                 .bias = nullptr,
                 .eps = x.norm->eps,
                 .y = {.bf16 = x.x.as<BF16>()}};
  }
  for (const void* rows :
       std::initializer_list<const void*>{task.x, task.norm.x, task.norm.weight}) {
    if (reinterpret_cast<uintptr_t>(rows) % sizeof(uint4) != 0) return false;
  }
  LaunchChain(context, task);
  return true;
}

}  // namespace ovq::kernels::cuda
