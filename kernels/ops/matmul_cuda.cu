// y[n, out] (+)= x[n, in] W^T, W [out, in], with the kernels of kernels/ops/cuda: CudaProduct, and
// the choice between it and CublasProduct.
#include <algorithm>
#include <vector>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/device_cuda.h"
#include "kernels/ops/cuda/product_bf16.cuh"
#include "kernels/ops/cuda/product_f32.cuh"
#include "kernels/ops/matmul_device.h"

namespace ovq {
namespace {

static_assert(CudaProduct::kSegment == cuda::kChunk * cuda::kChunksPerSegment);
static_assert(CudaProduct::kSegment == cuda::kSegmentF32);
static_assert(cuda::kManyOuts == cuda::kPanel);

constexpr int64_t kOutGroup = 64;  // outputs are padded to whole groups
constexpr size_t kUploadBytes = size_t{8} << 20;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Packs group `group` of the outputs: [4 tiles][chunks][2][32 lanes][8] elements, product_bf16.cuh.
void PackGroup(const StackedWeights& weights, int64_t group, int64_t padded_in, BF16* packed) {
  std::vector<BF16> row(static_cast<size_t>(padded_in), BF16{0});
  const int64_t end = std::min(weights.out, (group + 1) * kOutGroup);
  for (int64_t o = group * kOutGroup; o < end; ++o) {
    CopyRow(weights, o, row.data());
    const int64_t in_tile = o % cuda::kOutTile;
    BF16* tile = packed + (o % kOutGroup - in_tile) * padded_in;
    for (int64_t i = 0; i < padded_in; i += 2) {
      const int64_t chunk = i / cuda::kChunk, t = i % cuda::kChunk / 8, half = i % 8 / 4;
      const int64_t lane = in_tile % 8 * 4 + t;
      const int64_t pair = i % 4 / 2 * 2 + in_tile / 8;
      BF16* to = tile + ((chunk * 2 + half) * cuda::kLanes + lane) * 8 + pair * 2;
      to[0] = row[static_cast<size_t>(i)];
      to[1] = row[static_cast<size_t>(i + 1)];
    }
  }
}

// [inputs][64 outputs], product_f32.cuh.
void PackGroup(const StackedWeights& weights, int64_t group, int64_t padded_in, float* packed) {
  std::vector<float> row(static_cast<size_t>(padded_in), 0.0f);
  const int64_t end = std::min(weights.out, (group + 1) * kOutGroup);
  for (int64_t o = group * kOutGroup; o < end; ++o) {
    CopyRow(weights, o, row.data());
    for (int64_t i = 0; i < padded_in; ++i) {
      packed[i * kOutGroup + o % kOutGroup] = row[static_cast<size_t>(i)];
    }
  }
}

// A few groups at a time, so that the host never holds a second copy of all weights.
template <class T>
void PackAndUpload(const StackedWeights& weights, int64_t padded_in, DeviceContext& context,
                   T* to) {
  const size_t group_elements = static_cast<size_t>(kOutGroup * padded_in);
  const int64_t n_groups = CeilDiv(weights.out, kOutGroup);
  const auto at_once =
      std::max<int64_t>(1, static_cast<int64_t>(kUploadBytes / (group_elements * sizeof(T))));
  for (int64_t group = 0; group < n_groups; group += at_once) {
    const int64_t n = std::min(at_once, n_groups - group);
    std::vector<T> packed(static_cast<size_t>(n) * group_elements, T{});
    for (int64_t i = 0; i < n; ++i) {
      PackGroup(weights, group + i, padded_in,
                packed.data() + static_cast<size_t>(i) * group_elements);
    }
    cuda::Upload(context.cuda(), to + static_cast<size_t>(group) * group_elements, packed.data(),
                 packed.size() * sizeof(T));
  }
}

// Warps of a thread block for few rows: one for each segment.
int FewWarps(int64_t n_segments, int max_warps) {
  return static_cast<int>(std::min<int64_t>(n_segments, max_warps));
}

template <int kRowTiles>
void LaunchFewRows(DeviceContext& context, const cuda::ProductBF16& p) {
  const int n_warps = FewWarps(p.n_segments, cuda::kMaxFewWarps);
  cuda::Launch(context, cuda::FewRowsBF16<kRowTiles>,
               dim3(static_cast<unsigned>(CeilDiv(p.out, cuda::kOutTile))),
               dim3(n_warps * cuda::kLanes), cuda::FewRowsSharedBytes<kRowTiles>(n_warps), p);
}

void LaunchProduct(DeviceContext& context, const cuda::ProductBF16& p) {
  if (p.n <= cuda::kTileRows) return LaunchFewRows<1>(context, p);
  if (p.n <= 2 * cuda::kTileRows) return LaunchFewRows<2>(context, p);
  if (p.n <= 8 * cuda::kTileRows) return LaunchFewRows<8>(context, p);
  const dim3 grid(static_cast<unsigned>(CeilDiv(p.n, cuda::kManyRows)),
                  static_cast<unsigned>(CeilDiv(p.out, cuda::kManyOuts)));
  cuda::Launch(context, cuda::ManyRowsBF16, grid, dim3(cuda::kManyThreads),
               cuda::kManyRowsSharedBytes, p);
}

void LaunchProduct(DeviceContext& context, const cuda::ProductF32& p) {
  if (p.n <= cuda::kFewRowsF32) {
    const int n_warps = FewWarps(p.n_segments, cuda::kMaxFewWarpsF32);
    cuda::Launch(context, cuda::FewRowsF32,
                 dim3(static_cast<unsigned>(CeilDiv(p.out, cuda::kFewOuts))),
                 dim3(n_warps * cuda::kFewOuts), cuda::FewRowsSharedBytesF32(n_warps), p);
    return;
  }
  const dim3 grid(static_cast<unsigned>(CeilDiv(p.n, cuda::kManyRowsF32)),
                  static_cast<unsigned>(CeilDiv(p.out, cuda::kPanel)));
  cuda::Launch(context, cuda::ManyRowsF32, grid, dim3(cuda::kManyThreadsF32),
               cuda::kManyRowsSharedBytesF32, p);
}

}  // namespace

CudaProduct::CudaProduct(const StackedWeights& weights, DeviceContext& context)
    : in_(weights.in), out_(weights.out), compute_(weights.compute) {
  const int64_t padded_in = CeilDiv(in_, kSegment) * kSegment;
  const int64_t padded_out = CeilDiv(out_, kOutGroup) * kOutGroup;
  const size_t elements = static_cast<size_t>(padded_in * padded_out);
  weights_ = Buffer(Device::kCuda, elements * DTypeBytes(compute_));
  if (compute_ == DType::kF32) {
    PackAndUpload(weights, padded_in, context, weights_.as<float>());
  } else {
    PackAndUpload(weights, padded_in, context, weights_.as<BF16>());
  }
}

void CudaProduct::Apply(DeviceContext& context, TensorView x, TensorView y, bool accumulate) const {
  const int64_t n_segments = CeilDiv(in_, kSegment);
  if (compute_ == DType::kF32) {
    LaunchProduct(context, cuda::ProductF32{.weights = weights_.as<float>(),
                                            .x = x.as<float>(),
                                            .y = y.as<float>(),
                                            .n = x.shape[0],
                                            .in = in_,
                                            .out = out_,
                                            .n_segments = n_segments,
                                            .accumulate = accumulate});
    return;
  }
  const bool aligned = in_ % 8 == 0 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
  LaunchProduct(context, cuda::ProductBF16{.weights = weights_.as<uint4>(),
                                           .x = x.as<BF16>(),
                                           .y = y.as<float>(),
                                           .n = x.shape[0],
                                           .in = in_,
                                           .out = out_,
                                           .n_segments = n_segments,
                                           .accumulate = accumulate,
                                           .aligned = aligned});
}

namespace cuda {

void MakeProduct(DeviceContext& context, const StackedWeights& weights, Product* product) {
  if (auto fast = CublasProduct::Make(weights, context)) {
    *product = std::move(fast);
  } else {
    *product = std::make_unique<CudaProduct>(weights, context);
  }
}

}  // namespace cuda
}  // namespace ovq
