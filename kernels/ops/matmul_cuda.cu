// y[n, out] (+)= x[n, in] W^T, W [out, in], with the kernels of kernels/ops/cuda, and the choice
// between them and cuBLASLt.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/common/product_choices.h"
#include "kernels/ops/cuda/product_bf16.cuh"
#include "kernels/ops/cuda/product_f32.cuh"
#include "kernels/ops/matmul_device.h"

namespace ovq::kernels::cuda {
namespace {

static_assert(kManyOuts == kPanel);

constexpr int64_t kOutGroup = 64;  // outputs are padded to whole groups
constexpr size_t kUploadBytes = size_t{8} << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The place of weight [o, i] in its group of outputs, float32: see product_f32.cuh; bfloat16 and
// int8: see product_bf16.cuh.
template <class T>
int64_t PlaceInGroup(int64_t o, int64_t i, int64_t padded_in) {
  if constexpr (sizeof(T) == sizeof(float)) return i * kOutGroup + o;
  const int64_t in_tile = o % kOutTile, half = i / kChunk * 2 + i % 8 / 4;
  const int64_t lane = in_tile % 8 * 4 + i % kChunk / 8, pair = i % 4 / 2 * 2 + in_tile / 8;
  return (o - in_tile) * padded_in + (half * kLanes + lane) * 8 + pair * 2 + i % 2;
}

// copy_row(o, row) writes the weights of output o.
template <class T, class CopyRowFn>
Buffer Pack(DeviceContext& context, const StackedWeights& weights, CopyRowFn&& copy_row) {
  const int64_t padded_in = CeilDiv(weights.in, kSegment) * kSegment;
  std::vector<T> row(static_cast<size_t>(padded_in));
  return UploadItems(context, CeilDiv(weights.out, kOutGroup),
                     static_cast<size_t>(kOutGroup * padded_in) * sizeof(T),
                     [&](int64_t group, std::byte* bytes) {
                       T* const packed = reinterpret_cast<T*>(bytes);
                       const int64_t first = group * kOutGroup;
                       const int64_t n = std::min(kOutGroup, weights.out - first);
                       for (int64_t o = 0; o < n; ++o) {
                         copy_row(first + o, row.data());
                         for (int64_t i = 0; i < weights.in; ++i) {
                           packed[PlaceInGroup<T>(o, i, padded_in)] = row[i];
                         }
                       }
                     });
}

// Few rows: one warp per segment, up to the most warps of a thread block.
template <class Few>
void LaunchFewRows(DeviceContext& context, const ProductTask& task) {
  const int n_warps = static_cast<int>(std::min<int64_t>(task.n_segments, kMaxFewWarps));
  Launch(context, FewRows<Few>,
         dim3(static_cast<unsigned>(CeilDiv(task.out, Few::kOuts)),
              static_cast<unsigned>(CeilDiv(task.n, Few::kRows))),
         dim3(n_warps * kLanes), FewRowsSharedBytes<Few>(n_warps), task);
}

// W: see product_bf16.cuh.
template <class W>
void LaunchProductBF16(DeviceContext& context, const ProductTask& task) {
  if (task.n <= kTileRows) return LaunchFewRows<FewRowsBF16<1, W>>(context, task);
  if (task.n <= 2 * kTileRows) return LaunchFewRows<FewRowsBF16<2, W>>(context, task);
  if (task.n <= 8 * kTileRows) return LaunchFewRows<FewRowsBF16<8, W>>(context, task);
  const dim3 grid(static_cast<unsigned>(CeilDiv(task.n, kManyRows)),
                  static_cast<unsigned>(CeilDiv(task.out, kManyOuts)));
  Launch(context, ManyRowsBF16<W>, grid, dim3(kManyThreads), kManyRowsSharedBytes, task);
}

// scales: [out] for int8 weights, else empty.
Product WithKernels(const StackedWeights& weights, Buffer packed, Buffer scales,
                    void (*launch)(DeviceContext& context, const ProductTask& task)) {
  struct Memory {
    Buffer packed, scales;
  };
  const auto memory = std::make_shared<Memory>(std::move(packed), std::move(scales));
  const int64_t in = weights.in, out = weights.out;
  const auto apply = [=](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
    launch(context, {.weights = memory->packed.as<void>(),
                     .x = x.data,
                     .y = y.as<float>(),
                     .n = x.shape[0],
                     .in = in,
                     .out = out,
                     .n_segments = CeilDiv(in, kSegment),
                     .accumulate = accumulate,
                     .aligned = in % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0,
                     .scales = memory->scales.as<float>()});
  };
  return {memory->packed.bytes() + memory->scales.bytes(), apply};
}

}  // namespace

Buffer UploadItems(DeviceContext& context, int64_t n, size_t item_bytes,
                   const std::function<void(int64_t item, std::byte* bytes)>& fill) {
  Buffer memory(Device::kCuda, static_cast<size_t>(n) * item_bytes);
  const auto at_once = std::max<int64_t>(1, static_cast<int64_t>(kUploadBytes / item_bytes));
  for (int64_t first = 0; first < n; first += at_once) {
    const auto here = static_cast<size_t>(std::min(at_once, n - first));
    std::vector<std::byte> items(here * item_bytes);
    for (size_t i = 0; i < here; ++i) {
      fill(first + static_cast<int64_t>(i), items.data() + i * item_bytes);
    }
    Upload(context.cuda(), memory.as<std::byte>() + static_cast<size_t>(first) * item_bytes,
           items.data(), items.size());
  }
  return memory;
}

Product MakeOwnProduct(DeviceContext& context, const StackedWeights& weights) {
  const auto copy_row = [&](int64_t o, void* row) { CopyRow(weights, o, row); };
  if (weights.compute == DType::kF32) {
    return WithKernels(weights, Pack<float>(context, weights, copy_row), {},
                       LaunchFewRows<FewRowsF32>);
  }
  return WithKernels(weights, Pack<BF16>(context, weights, copy_row), {}, LaunchProductBF16<uint4>);
}

Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights) {
  const Int8Weights rounded = RoundToInt8(weights);
  const auto copy_row = [&](int64_t o, int8_t* row) {
    std::copy_n(rounded.values.begin() + o * weights.in, weights.in, row);
  };
  NoteProduct({weights.in, weights.out, "int8", "own", "weights in int8"});
  return WithKernels(weights, Pack<int8_t>(context, weights, copy_row),
                     context.Upload(rounded.scales.data(), rounded.scales.size() * sizeof(float)),
                     LaunchProductBF16<uint2>);
}

Product MakeProduct(DeviceContext& context, const StackedWeights& weights) {
  const char* wanted = std::getenv("OVQ_CUDA_PRODUCTS");
  const bool own = wanted != nullptr && std::string_view(wanted) == "own";
  std::string what = "OVQ_CUDA_PRODUCTS";
  std::optional<Product> fast;
  if (!own) fast = MakeCublasProduct(context, weights, what);
  NoteProduct(
      {weights.in, weights.out, WeightsName(weights.compute), fast ? "cuBLASLt" : "own", what});
  return fast ? *std::move(fast) : MakeOwnProduct(context, weights);
}

}  // namespace ovq::kernels::cuda
