// y[n, out] (+)= x[n, in] W^T for few rows: product_chain.h.
//
// W is the left factor of the matrix instruction (16 outputs by 16 inputs), the rows of x are the
// columns of the other, eight at a time. A warp has a tile of 16 outputs and all inputs. While the
// kernels before it still run, the thread block copies all weights of its tiles to shared memory;
// what is left to do after them is to read x and to go through the chain, whose instructions wait
// for each other.
//
// Shared memory: weights [vectors][outputs of the block] uint4, then x [vectors][kRows] uint4, a
// vector being 8 inputs: so ldmatrix and the copies meet no bank conflict. Zeros past `in` and
// `out`.
#pragma once

#include <cstdint>

#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/ops/product_chain.h"

namespace ovq::kernels::cuda {

inline constexpr int kChainLanes = 32;
inline constexpr int kChainWarps = 8;
inline constexpr int kChainThreads = kChainWarps * kChainLanes;
inline constexpr int kChainTile = 16;     // outputs of a warp
inline constexpr int kMaxChainTiles = 4;  // of a block, a power of two
inline constexpr int kVectorInputs = 8;
inline constexpr int kLinkVectors = 4;  // a link of the chain is two instructions
inline constexpr int kLinkInputs = kLinkVectors * kVectorInputs;
// The weights arrive in this many portions, and the chain goes through one when it is there.
inline constexpr int kPortions = 4;
static_assert(kChainWarps % (kMaxChainTiles * kChainTile / 8) == 0);

struct ChainShape {
  int n_links, n_tiles;  // links of the inputs; tiles of a block

  __host__ __device__ int outs() const { return n_tiles * kChainTile; }
  __host__ __device__ int n_vectors() const { return n_links * kLinkVectors; }
  __host__ __device__ int begin(int portion) const { return n_links * portion / kPortions; }
  size_t shared_bytes(int n_rows) const {
    return static_cast<size_t>(n_vectors()) * (outs() + n_rows) * sizeof(uint4);
  }
};

// Starts to copy a portion of the block's weights. A warp copies 8 outputs by a link at a time: 64
// bytes of each output's row.
__device__ inline void CopyWeights(const ChainTask& task, ChainShape shape, int portion,
                                   SharedPtr<uint4> weights) {
  const int warp = static_cast<int>(threadIdx.x) / kChainLanes;
  const int lane = static_cast<int>(threadIdx.x) % kChainLanes;
  const int n_octets = shape.outs() / 8, out = warp % n_octets * 8 + lane % 8;
  const int64_t row = int64_t{blockIdx.x} * shape.outs() + out;
  const BF16* from = task.weights + min(row, task.out - 1) * task.in;
  const int end = shape.begin(portion + 1);
  for (int link = shape.begin(portion) + warp / n_octets; link < end;
       link += kChainWarps / n_octets) {
    const int vector = link * kLinkVectors + lane / 8;
    CopyAsync16(weights + (vector * shape.outs() + out), from + vector * kVectorInputs,
                row < task.out && vector * kVectorInputs < task.in);
  }
}

// Puts x into shared memory. Several loads are on their way at once.
template <int kRows>
__device__ void StoreRows(const ChainTask& task, ChainShape shape, SharedPtr<uint4> x) {
  constexpr int kAtOnce = 4;
  const int n = shape.n_vectors() * kRows;
  for (int first = static_cast<int>(threadIdx.x); first < n; first += kAtOnce * kChainThreads) {
    uint4 loaded[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kChainThreads, row = at % kRows,
                input = at / kRows * kVectorInputs;
      const bool inside = row < task.n && input < task.in;
      loaded[i] = inside ? *reinterpret_cast<const uint4*>(task.x + row * task.in + input)
                         : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kChainThreads;
      if (at < n) x[at] = loaded[i];
    }
  }
}

// The factors of a link as lanes hold them.
template <int kRowTiles>
struct ChainLink {
  uint32_t w[2][4], x[kRowTiles][4];
};

// The lane's places in shared memory.
template <int kRows>
struct ChainReader {
  static constexpr int kRowTiles = (kRows + 7) / 8;
  SharedPtr<const uint4> weights, x;
  int outs;

  __device__ ChainReader(SharedPtr<const uint4> weights, SharedPtr<const uint4> x, int outs)
      : outs(outs) {
    const int warp = static_cast<int>(threadIdx.x) / kChainLanes;
    const int lane = static_cast<int>(threadIdx.x) % kChainLanes;
    this->weights = weights + (lane / 16 * outs + warp * kChainTile + lane % 16);
    this->x = x + (lane / 8 * kRows + lane % min(kRows, 8));
  }

  __device__ ChainLink<kRowTiles> Load(int link) const {
    ChainLink<kRowTiles> loaded;
    const int vector = link * kLinkVectors;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      LoadMatrices(loaded.w[i], weights + (vector + 2 * i) * outs);
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      LoadMatrices(loaded.x[r], x + (vector * kRows + r * 8));
    }
    return loaded;
  }
};

template <int kRowTiles>
__device__ inline void Multiply(float (&sum)[kRowTiles][4], const ChainLink<kRowTiles>& link) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      MmaBF16(sum[r], link.w[i], link.x[r][2 * i], link.x[r][2 * i + 1]);
    }
  }
}

// Waits for this thread's copies of a portion and all before it.
__device__ inline void WaitForPortion(int portion) {
  static_assert(kPortions == 4);
  if (portion == 0) WaitCopies<3>();
  if (portion == 1) WaitCopies<2>();
  if (portion == 2) WaitCopies<1>();
  if (portion == 3) WaitCopies<0>();
}

// Calls fn(r, i, row, column) for each sum[r][i] of this lane within y.
template <int kRowTiles, class Fn>
__device__ void ForSums(const ChainTask& task, ChainShape shape, Fn&& fn) {
  const int warp = static_cast<int>(threadIdx.x) / kChainLanes;
  const int lane = static_cast<int>(threadIdx.x) % kChainLanes, g = lane / 4, t = lane % 4;
  const int64_t first_out = int64_t{blockIdx.x} * shape.outs() + warp * kChainTile + g;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t row = r * 8 + 2 * t + i % 2, column = first_out + i / 2 * 8;
      if (row < task.n && column < task.out) fn(r, i, row * task.out + column);
    }
  }
}

// grid: blocks of shape.n_tiles tiles. kRows: 1, 8 or 16, at least task.n.
template <int kRows>
__global__ void __launch_bounds__(kChainThreads)
    ChainKernel(const ChainTask task, const ChainShape shape) {
  constexpr int kRowTiles = ChainReader<kRows>::kRowTiles;
  AllowNextKernel();
  const SharedPtr<uint4> weights = DynamicShared<uint4>(0);
  const SharedPtr<uint4> x = weights + shape.n_vectors() * shape.outs();
  for (int portion = 0; portion < kPortions; ++portion) {
    CopyWeights(task, shape, portion, weights);
    CommitCopies();
  }
  WaitForKernelsBefore();
  const bool multiplies = static_cast<int>(threadIdx.x) / kChainLanes < shape.n_tiles;
  float before[kRowTiles][4] = {}, sum[kRowTiles][4] = {};
  if (multiplies && task.accumulate) {
    ForSums<kRowTiles>(task, shape,
                       [&](int r, int i, int64_t place) { before[r][i] = task.y[place]; });
  }
  StoreRows<kRows>(task, shape, x);
  const ChainReader<kRows> reader(weights, x, shape.outs());
#pragma unroll
  for (int portion = 0; portion < kPortions; ++portion) {
    WaitForPortion(portion);
    __syncthreads();
    const int begin = shape.begin(portion), end = shape.begin(portion + 1);
    if (!multiplies || begin == end) continue;
    ChainLink<kRowTiles> link = reader.Load(begin);
#pragma unroll 4
    for (int i = begin; i < end; ++i) {
      const ChainLink<kRowTiles> next = reader.Load(min(i + 1, end - 1));
      Multiply(sum, link);
      link = next;
    }
  }
  if (!multiplies) return;
  ForSums<kRowTiles>(task, shape, [&](int r, int i, int64_t place) {
    task.y[place] = task.accumulate ? before[r][i] + sum[r][i] : sum[r][i];
  });
}

}  // namespace ovq::kernels::cuda
