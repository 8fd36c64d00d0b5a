// y[n, out] (+)= x[n, in] W^T, W [out, in], with the kernels of kernels/ops/cuda, and the choice
// between them and cuBLASLt.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/common/product_choices.h"
#include "kernels/ops/cuda/product_bf16.cuh"
#include "kernels/ops/cuda/product_f32.cuh"
#include "kernels/ops/experts.h"
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

int64_t PaddedInputs(const StackedWeights& weights) {
  return CeilDiv(weights.in, kSegment) * kSegment;
}

// Packs a group of outputs. copy_row(o, row) writes the weights of output o.
template <class T, class CopyRowFn>
void PackGroup(const StackedWeights& weights, int64_t group, CopyRowFn&& copy_row, T* packed) {
  const int64_t padded_in = PaddedInputs(weights), first = group * kOutGroup;
  const int64_t n = std::min(kOutGroup, weights.out - first);
  std::vector<T> row(static_cast<size_t>(weights.in));
  for (int64_t o = 0; o < n; ++o) {
    copy_row(first + o, row.data());
    for (int64_t i = 0; i < weights.in; ++i) packed[PlaceInGroup<T>(o, i, padded_in)] = row[i];
  }
}

template <class T, class CopyRowFn>
Buffer Pack(DeviceContext& context, const StackedWeights& weights, CopyRowFn&& copy_row) {
  return UploadItems(context, CeilDiv(weights.out, kOutGroup),
                     static_cast<size_t>(kOutGroup * PaddedInputs(weights)) * sizeof(T),
                     [&](int64_t group, std::byte* bytes) {
                       PackGroup(weights, group, copy_row, reinterpret_cast<T*>(bytes));
                     });
}

// The weights of several experts, one after another. rows_of(expert) gives the copy_row of one.
template <class T, class RowsOfFn>
Buffer PackExperts(DeviceContext& context, std::span<const StackedWeights> experts,
                   RowsOfFn&& rows_of) {
  const int64_t n_groups = CeilDiv(experts[0].out, kOutGroup);
  const int64_t group_size = kOutGroup * PaddedInputs(experts[0]);
  return UploadItems(context, static_cast<int64_t>(experts.size()),
                     static_cast<size_t>(n_groups * group_size) * sizeof(T),
                     [&](int64_t expert, std::byte* bytes) {
                       auto&& copy_row = rows_of(expert);
                       for (int64_t group = 0; group < n_groups; ++group) {
                         PackGroup(experts[expert], group, copy_row,
                                   reinterpret_cast<T*>(bytes) + group * group_size);
                       }
                     });
}

// Few rows: one warp per segment, up to the most warps of a thread block.
template <class Few>
void LaunchFewRows(DeviceContext& context, const ProductTask& task) {
  constexpr int64_t kMostParts = 65'535;  // of a grid in y
  const int n_warps = static_cast<int>(std::min<int64_t>(task.n_segments, kMaxFewWarps));
  const int64_t n_parts = task.Parts(Few::kRows);
  ProductTask some = task;
  for (; some.first_part < n_parts; some.first_part += kMostParts) {
    Launch(context, FewRows<Few>,
           dim3(static_cast<unsigned>(CeilDiv(task.out, Few::kOuts)),
                static_cast<unsigned>(std::min(kMostParts, n_parts - some.first_part))),
           dim3(n_warps * kLanes), FewRowsSharedBytes<Few>(n_warps), some);
  }
}

// W: see product_bf16.cuh.
template <class W>
void LaunchProductBF16(DeviceContext& context, const ProductTask& task) {
  const int64_t n = task.tiles == nullptr ? task.n : task.tile_rows;  // of one weight
  if (n <= kTileRows) return LaunchFewRows<FewRowsBF16<1, W>>(context, task);
  if (n <= 2 * kTileRows) return LaunchFewRows<FewRowsBF16<2, W>>(context, task);
  if (n <= 8 * kTileRows) return LaunchFewRows<FewRowsBF16<8, W>>(context, task);
  const dim3 grid(static_cast<unsigned>(task.Parts(kManyRows)),
                  static_cast<unsigned>(CeilDiv(task.out, kManyOuts)));
  Launch(context, ManyRowsBF16<W>, grid, dim3(kManyThreads), kManyRowsSharedBytes, task);
}

using LaunchFn = void (*)(DeviceContext& context, const ProductTask& task);

// Weights on the device; scales: [out] of each expert for int8 weights, else empty.
struct Packed {
  Buffer weights, scales;
  size_t bytes() const { return weights.bytes() + scales.bytes(); }

  ProductTask Task(TensorView x, TensorView y, bool accumulate) const {
    const int64_t in = x.shape[1];
    return {.weights = weights.as<void>(),
            .x = x.data,
            .y = y.as<float>(),
            .n = x.shape[0],
            .in = in,
            .out = y.shape[1],
            .n_segments = CeilDiv(in, kSegment),
            .accumulate = accumulate,
            .aligned = in % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0,
            .scales = scales.as<float>()};
  }
};

Product WithKernels(Packed packed, LaunchFn launch) {
  const auto memory = std::make_shared<const Packed>(std::move(packed));
  return {memory->bytes(),
          [=](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
            launch(context, memory->Task(x, y, accumulate));
          }};
}

ExpertProduct ExpertsWithKernels(Packed packed, size_t n_experts, LaunchFn launch) {
  const auto memory = std::make_shared<const Packed>(std::move(packed));
  const auto expert_bytes = static_cast<int64_t>(memory->weights.bytes() / n_experts);
  return {[=](DeviceContext& context, const Routes& routes, TensorView x, TensorView y) {
    ProductTask task = memory->Task(x, y, false);
    task.tiles = routes.tiles, task.n_tiles = routes.n_tiles;
    task.tile_rows = routes.tile_rows, task.expert_bytes = expert_bytes;
    launch(context, task);
  }};
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
    return WithKernels({Pack<float>(context, weights, copy_row), {}}, LaunchFewRows<FewRowsF32>);
  }
  return WithKernels({Pack<BF16>(context, weights, copy_row), {}}, LaunchProductBF16<uint4>);
}

Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights) {
  const Int8Weights rounded = RoundToInt8(weights);
  const auto copy_row = [&](int64_t o, int8_t* row) {
    std::copy_n(rounded.values.begin() + o * weights.in, weights.in, row);
  };
  NoteProduct({weights.in, weights.out, "int8", "own", "weights in int8"});
  return WithKernels({Pack<int8_t>(context, weights, copy_row), context.Upload(rounded.scales)},
                     LaunchProductBF16<uint2>);
}

ExpertProduct MakeExpertProduct(DeviceContext& context, std::span<const StackedWeights> experts,
                                WeightType type) {
  const StackedWeights& first = experts[0];
  const bool is_int8 = type == WeightType::kInt8;
  NoteProduct({first.in, first.out, is_int8 ? "int8" : WeightsName(first.compute), "own",
               "weights of experts"});
  const auto rows_of = [&](int64_t expert) {
    return [&weights = experts[expert]](int64_t o, void* row) { CopyRow(weights, o, row); };
  };
  if (first.compute == DType::kF32) {
    return ExpertsWithKernels({PackExperts<float>(context, experts, rows_of), {}}, experts.size(),
                              LaunchFewRows<FewRowsF32>);
  }
  if (!is_int8) {
    return ExpertsWithKernels({PackExperts<BF16>(context, experts, rows_of), {}}, experts.size(),
                              LaunchProductBF16<uint4>);
  }
  std::vector<float> scales;
  const auto int8_rows_of = [&](int64_t expert) {
    Int8Weights rounded = RoundToInt8(experts[expert]);
    scales.insert(scales.end(), rounded.scales.begin(), rounded.scales.end());
    return [rounded = std::move(rounded)](int64_t o, int8_t* row) {
      std::copy_n(rounded.values.begin() + o * rounded.in, rounded.in, row);
    };
  };
  Buffer packed = PackExperts<int8_t>(context, experts, int8_rows_of);
  return ExpertsWithKernels({std::move(packed), context.Upload(scales)}, experts.size(),
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
