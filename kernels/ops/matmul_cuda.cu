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

constexpr int kSegment = kChunk * kChunksPerSegment;
static_assert(kSegment == kSegmentF32);
static_assert(kManyOuts == kPanel);

constexpr int64_t kOutGroup = 64;  // outputs are padded to whole groups
constexpr size_t kUploadBytes = size_t{8} << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Packs group `group` of the outputs: [4 tiles][chunks][2][32 lanes][8] elements, see
// product_bf16.cuh. copy_row(o, row) writes the weights of output o.
template <class T, class CopyRowFn>
void PackTiles(int64_t out, int64_t group, int64_t padded_in, CopyRowFn&& copy_row, T* packed) {
  std::vector<T> row(static_cast<size_t>(padded_in), T{0});
  const int64_t end = std::min(out, (group + 1) * kOutGroup);
  for (int64_t o = group * kOutGroup; o < end; ++o) {
    copy_row(o, row.data());
    const int64_t in_tile = o % kOutTile;
    T* tile = packed + (o % kOutGroup - in_tile) * padded_in;
    for (int64_t i = 0; i < padded_in; i += 2) {
      const int64_t chunk = i / kChunk, t = i % kChunk / 8, half = i % 8 / 4;
      const int64_t lane = in_tile % 8 * 4 + t;
      const int64_t pair = i % 4 / 2 * 2 + in_tile / 8;
      T* to = tile + ((chunk * 2 + half) * kLanes + lane) * 8 + pair * 2;
      to[0] = row[i];
      to[1] = row[i + 1];
    }
  }
}

void PackGroup(const StackedWeights& weights, int64_t group, int64_t padded_in, BF16* packed) {
  PackTiles(
      weights.out, group, padded_in, [&](int64_t o, BF16* row) { CopyRow(weights, o, row); },
      packed);
}

// Packs a group as [inputs][64 outputs], see product_f32.cuh.
void PackGroup(const StackedWeights& weights, int64_t group, int64_t padded_in, float* packed) {
  std::vector<float> row(static_cast<size_t>(padded_in), 0.0f);
  const int64_t end = std::min(weights.out, (group + 1) * kOutGroup);
  for (int64_t o = group * kOutGroup; o < end; ++o) {
    CopyRow(weights, o, row.data());
    for (int64_t i = 0; i < padded_in; ++i) {
      packed[i * kOutGroup + o % kOutGroup] = row[i];
    }
  }
}

template <class T>
Buffer PackAndUpload(DeviceContext& context, const StackedWeights& weights, int64_t padded_in) {
  const size_t group_bytes = static_cast<size_t>(kOutGroup * padded_in) * sizeof(T);
  return UploadItems(context, CeilDiv(weights.out, kOutGroup), group_bytes,
                     [&](int64_t group, std::byte* bytes) {
                       PackGroup(weights, group, padded_in, reinterpret_cast<T*>(bytes));
                     });
}

// Few rows: one warp per segment, up to the most warps of a thread block.
template <class Few>
void LaunchFewRows(DeviceContext& context, const ProductTask& task) {
  const int n_warps = static_cast<int>(std::min<int64_t>(task.n_segments, kMaxFewWarps));
  Launch(context, FewRows<Few>, dim3(static_cast<unsigned>(CeilDiv(task.out, Few::kOuts))),
         dim3(n_warps * kLanes), FewRowsSharedBytes<Few>(n_warps), task);
}

dim3 Tiles(const ProductTask& task, int rows, int outs) {
  return dim3(static_cast<unsigned>(CeilDiv(task.n, rows)),
              static_cast<unsigned>(CeilDiv(task.out, outs)));
}

// W: see product_bf16.cuh.
template <class W>
void LaunchProductBF16(DeviceContext& context, const ProductTask& task) {
  if (task.n <= kTileRows) return LaunchFewRows<FewRowsBF16<1, W>>(context, task);
  if (task.n <= 2 * kTileRows) return LaunchFewRows<FewRowsBF16<2, W>>(context, task);
  if (task.n <= 8 * kTileRows) return LaunchFewRows<FewRowsBF16<8, W>>(context, task);
  Launch(context, ManyRowsBF16<W>, Tiles(task, kManyRows, kManyOuts), dim3(kManyThreads),
         kManyRowsSharedBytes, task);
}

void LaunchProductF32(DeviceContext& context, const ProductTask& task) {
  if (task.n <= FewRowsF32::kRows) return LaunchFewRows<FewRowsF32>(context, task);
  Launch(context, ManyRowsF32, Tiles(task, kManyRowsF32, kPanel), dim3(kManyThreadsF32),
         kManyRowsSharedBytesF32, task);
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
  const int64_t in = weights.in, out = weights.out, n_segments = CeilDiv(in, kSegment);
  const bool wide = weights.compute == DType::kF32;
  const auto packed =
      std::make_shared<Buffer>(wide ? PackAndUpload<float>(context, weights, n_segments * kSegment)
                                    : PackAndUpload<BF16>(context, weights, n_segments * kSegment));
  const auto apply = [=](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
    const ProductTask task = {
        .weights = packed->as<void>(),
        .x = x.data,
        .y = y.as<float>(),
        .n = x.shape[0],
        .in = in,
        .out = out,
        .n_segments = n_segments,
        .accumulate = accumulate,
        .aligned = in % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0};
    wide ? LaunchProductF32(context, task) : LaunchProductBF16<uint4>(context, task);
  };
  return {packed->bytes(), apply};
}

Product MakeInt8Product(DeviceContext& context, const StackedWeights& weights) {
  const int64_t in = weights.in, out = weights.out, n_segments = CeilDiv(in, kSegment);
  const Int8Weights rounded = RoundToInt8(weights);
  const auto pack = [&](int64_t group, std::byte* bytes) {
    const auto copy_row = [&](int64_t o, int8_t* row) {
      std::copy_n(rounded.values.begin() + o * in, in, row);
    };
    PackTiles(out, group, n_segments * kSegment, copy_row, reinterpret_cast<int8_t*>(bytes));
  };
  const auto packed = std::make_shared<Buffer>(
      UploadItems(context, CeilDiv(out, kOutGroup),
                  static_cast<size_t>(kOutGroup * n_segments * kSegment), pack));
  const auto scales = std::make_shared<Buffer>(
      context.Upload(rounded.scales.data(), rounded.scales.size() * sizeof(float)));
  const auto apply = [=](DeviceContext& context, TensorView x, TensorView y, bool accumulate) {
    const ProductTask task = {
        .weights = packed->as<void>(),
        .x = x.data,
        .y = y.as<float>(),
        .n = x.shape[0],
        .in = in,
        .out = out,
        .n_segments = n_segments,
        .accumulate = accumulate,
        .aligned = in % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0,
        .scales = scales->as<float>()};
    LaunchProductBF16<uint2>(context, task);
  };
  NoteProduct(
      {.in = in, .out = out, .weights = "int8", .product = "own", .detail = "weights in int8"});
  return {packed->bytes() + scales->bytes(), apply};
}

Product MakeProduct(DeviceContext& context, const StackedWeights& weights) {
  const char* wanted = std::getenv("OVQ_CUDA_PRODUCTS");
  const bool own = wanted != nullptr && std::string_view(wanted) == "own";
  std::string what = "OVQ_CUDA_PRODUCTS";
  std::optional<Product> fast;
  if (!own) fast = MakeCublasProduct(context, weights, what);
  NoteProduct({.in = weights.in,
               .out = weights.out,
               .weights = WeightsName(weights.compute),
               .product = fast ? "cuBLASLt" : "own",
               .detail = what});
  return fast ? *std::move(fast) : MakeOwnProduct(context, weights);
}

}  // namespace ovq::kernels::cuda
