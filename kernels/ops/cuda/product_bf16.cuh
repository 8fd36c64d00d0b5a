// y[n, out] (+)= x[n, in] W^T, W [out, in], with bfloat16 factors on tensor cores.
//
// W is the left factor of the matrix instruction (16 outputs by 16 inputs), so that rows of x are
// the columns of the other, eight at a time. It is packed in the order in which the lanes hold it,
//   [out tiles of 16][chunks of 32 inputs][2 halves][32 lanes] uint4,
// with zeros past `in` and `out`. Any assignment of inputs to the instruction's places gives a
// product as long as both factors use it: for half j of a chunk, lane (g, t) = (lane / 4, lane % 4)
// holds the inputs 8t + 4j .. 8t + 4j + 3 of outputs g and g + 8,
//   {(g, 0..1), (g + 8, 0..1), (g, 2..3), (g + 8, 2..3)},
// so a row of x enters with one load of 16 bytes for both halves.
//
// int8 weights are packed alike, with a lane's eight weights of a half in a uint2. They are
// widened, which is exact, on their way into the instruction or into shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/common/tensor.h"
#include "kernels/ops/cuda/product.cuh"

namespace ovq::kernels::cuda {

inline constexpr int kOutTile = 16;
inline constexpr int kTileRows = 8;
inline constexpr int kChunk = 32;
inline constexpr int kChunksPerSegment = kSegment / kChunk;
inline constexpr int kChunkVectors = 2 * kLanes;  // uint4 of an out tile's chunk

// W: uint4 for bfloat16 weights, uint2 for int8.
template <class W>
__device__ const W* OutTile(const ProductTask& p, int64_t tile) {
  return static_cast<const W*>(p.weights) + tile * p.n_segments * kChunksPerSegment * kChunkVectors;
}

// Widens bytes 2i and 2i + 1 of four to two bfloat16 values, the first in the lower half.
__device__ inline uint32_t WidenPair(uint32_t bytes, int i) {
  const auto low = static_cast<float>(static_cast<int8_t>(bytes >> 16 * i));
  const auto high = static_cast<float>(static_cast<int8_t>(bytes >> (16 * i + 8)));
  return __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);
}
__device__ inline uint4 Widened(const uint4& weights) { return weights; }
__device__ inline uint4 Widened(const uint2& weights) {
  return make_uint4(WidenPair(weights.x, 0), WidenPair(weights.x, 1), WidenPair(weights.y, 0),
                    WidenPair(weights.y, 1));
}

// x[row, i .. i + 7], zeros outside x.
__device__ inline uint4 LoadX(const ProductTask& p, int64_t row, int64_t i) {
  if (row >= p.n || i >= p.in) return make_uint4(0, 0, 0, 0);
  const BF16* from = static_cast<const BF16*>(p.x) + row * p.in + i;
  if (p.aligned) return *reinterpret_cast<const uint4*>(from);
  uint32_t pairs[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint32_t low = i + 2 * j < p.in ? from[2 * j].bits : 0u;
    const uint32_t high = i + 2 * j + 1 < p.in ? from[2 * j + 1].bits : 0u;
    pairs[j] = low | high << 16;
  }
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// sum += one chunk of an out tile (both halves) times that chunk of eight rows.
__device__ inline void MultiplyChunk(float (&sum)[4], const uint4& first, const uint4& second,
                                     const uint4& x) {
  const uint32_t a[4] = {first.x, first.y, first.z, first.w};
  MmaBF16(sum, a, x.x, x.y);
  const uint32_t b[4] = {second.x, second.y, second.z, second.w};
  MmaBF16(sum, b, x.z, x.w);
}

// The Few argument of FewRows for bfloat16. Every weight is read once, straight into registers, one
// segment ahead.
template <int kRowTiles, class W>
class FewRowsBF16 {
 public:
  using X = BF16;
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kOuts = kOutTile;
  static constexpr int kStride = 20;  // lanes meet no bank conflict

  __device__ explicit FewRowsBF16(const ProductTask& task)
      : p_(task), tile_(OutTile<W>(task, blockIdx.x) + threadIdx.x % kLanes) {}

  __device__ void Load(int64_t segment) {
    const W* from = tile_ + segment * kChunksPerSegment * kChunkVectors;
#pragma unroll
    for (int i = 0; i < 2 * kChunksPerSegment; ++i) w_[i] = from[i * kLanes];
  }

  __device__ void Multiply(int64_t segment, SharedPtr<float> partial) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
    float sum[kRowTiles][4] = {};
#pragma unroll
    for (int c = 0; c < kChunksPerSegment; ++c) {
      const uint4 first = Widened(w_[2 * c]), second = Widened(w_[2 * c + 1]);
      const int64_t i = (segment * kChunksPerSegment + c) * kChunk + 8 * t;
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const uint4 x = LoadX(p_, r * kTileRows + g, i);
        MultiplyChunk(sum[r], first, second, x);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const SharedPtr<float> row = partial + ((r * kTileRows + 2 * t) * kStride + g);
      row[0] = sum[r][0];
      row[kStride] = sum[r][1];
      row[8] = sum[r][2];
      row[kStride + 8] = sum[r][3];
    }
  }

 private:
  const ProductTask& p_;
  const W* tile_;
  W w_[2 * kChunksPerSegment] = {};
};

// --- many rows -------------------------------------------------------------------------------
// A block has 64 outputs and 128 rows, its four warps 32 outputs and 64 rows each. Stages of 64
// inputs pass through shared memory: weights as packed, [4 out tiles][2 chunks] of kChunkVectors,
// then x, [2 chunks][128 rows][4] uint4.

inline constexpr int kManyOuts = 64;
inline constexpr int kManyRows = 128;
inline constexpr int kManyThreads = 128;
inline constexpr int kProductStages = 3;
inline constexpr int kStageChunks = 2;
inline constexpr int kStagesPerSegment = kChunksPerSegment / kStageChunks;
inline constexpr int kWarpOutTiles = 2;
inline constexpr int kWarpRowTiles = 8;
inline constexpr int kStageWeights = kManyOuts / kOutTile * kStageChunks * kChunkVectors;
inline constexpr int kStageVectors = kStageWeights + kStageChunks * kManyRows * 4;
inline constexpr uint32_t kManyRowsSharedBytes = kProductStages * kStageVectors * sizeof(uint4);

template <class W>
__device__ void LoadStage(const ProductTask& p, int64_t stage, SharedPtr<uint4> to) {
  constexpr int kTileVectors = kStageChunks * kChunkVectors;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t first_tile = int64_t{blockIdx.y} * (kManyOuts / kOutTile);
  const auto* x = static_cast<const BF16*>(p.x);
#pragma unroll
  for (int v = thread; v < kStageWeights; v += kManyThreads) {
    const W* from = OutTile<W>(p, first_tile + v / kTileVectors) + stage * kTileVectors;
    if constexpr (std::is_same_v<W, uint4>) {
      CopyAsync16(to + v, from + v % kTileVectors, true);
    } else {
      to[v] = Widened(from[v % kTileVectors]);
    }
  }
#pragma unroll
  for (int v = thread; v < kStageChunks * kManyRows * 4; v += kManyThreads) {
    const int64_t row = v / 4 % kManyRows;
    const int64_t i = (stage * kStageChunks + v / (4 * kManyRows)) * kChunk + v % 4 * 8;
    if (p.aligned) {
      const bool inside = row < p.n && i < p.in;
      CopyAsync16(to + (kStageWeights + v), inside ? x + row * p.in + i : x, inside);
    } else {
      to[kStageWeights + v] = LoadX(p, row, i);
    }
  }
}

__device__ inline void MultiplyStage(float (&sum)[kWarpOutTiles][kWarpRowTiles][4],
                                     SharedPtr<const uint4> stage) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int first_tile = warp % 2 * kWarpOutTiles;
  const int first_row = warp / 2 * kWarpRowTiles * kTileRows;
#pragma unroll
  for (int c = 0; c < kStageChunks; ++c) {
    uint4 w[kWarpOutTiles][2];
#pragma unroll
    for (int o = 0; o < kWarpOutTiles; ++o) {
      const SharedPtr<const uint4> from =
          stage + (((first_tile + o) * kStageChunks + c) * kChunkVectors + lane);
      w[o][0] = from[0];
      w[o][1] = from[kLanes];
    }
    const SharedPtr<const uint4> rows =
        stage + (kStageWeights + (c * kManyRows + first_row) * 4 + lane);
#pragma unroll
    for (int r = 0; r < kWarpRowTiles; ++r) {
      const uint4 x = rows[r * kTileRows * 4];
#pragma unroll
      for (int o = 0; o < kWarpOutTiles; ++o) MultiplyChunk(sum[o][r], w[o][0], w[o][1], x);
    }
  }
}

__device__ inline void StoreSums(const ProductTask& p,
                                 const float (&total)[kWarpOutTiles][kWarpRowTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes, g = lane / 4, t = lane % 4;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int64_t first_out = int64_t{blockIdx.y} * kManyOuts + warp % 2 * kWarpOutTiles * kOutTile;
  const int64_t first_row = warp / 2 * kWarpRowTiles * kTileRows + 2 * t;
#pragma unroll
  for (int r = 0; r < kWarpRowTiles; ++r) {
#pragma unroll
    for (int o = 0; o < kWarpOutTiles; ++o) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int64_t row = first_row + r * kTileRows + i % 2;
        const int64_t column = first_out + o * kOutTile + g + i / 2 * 8;
        p.Store(row, column, total[o][r][i]);
      }
    }
  }
}

// grid: (parts of kManyRows, out tiles of 64).
template <class W>
__global__ void __launch_bounds__(kManyThreads) ManyRowsBF16(const ProductTask all) {
  const ProductTask p = all.Part<BF16>(blockIdx.x, kManyRows);
  if (p.n <= 0) return;
  const SharedPtr<uint4> shared = DynamicShared<uint4>(0);
  const int64_t n_stages = p.n_segments * kStagesPerSegment;
#pragma unroll
  for (int s = 0; s < kProductStages - 1; ++s) {
    if (s < n_stages) LoadStage<W>(p, s, shared + s * kStageVectors);
    CommitCopies();
  }
  float total[kWarpOutTiles][kWarpRowTiles][4] = {};
  float sum[kWarpOutTiles][kWarpRowTiles][4] = {};
  int slot = 0, free_slot = kProductStages - 1;
  for (int64_t stage = 0; stage < n_stages; ++stage) {
    WaitCopies<kProductStages - 2>();
    __syncthreads();
    if (stage + kProductStages - 1 < n_stages) {
      LoadStage<W>(p, stage + kProductStages - 1, shared + free_slot * kStageVectors);
    }
    CommitCopies();
    MultiplyStage(sum, shared + slot * kStageVectors);
    free_slot = slot;
    slot = slot + 1 == kProductStages ? 0 : slot + 1;
    if (stage % kStagesPerSegment != kStagesPerSegment - 1) continue;
#pragma unroll
    for (int o = 0; o < kWarpOutTiles; ++o) {
#pragma unroll
      for (int r = 0; r < kWarpRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[o][r][i] += sum[o][r][i];
          sum[o][r][i] = 0;
        }
      }
    }
  }
  StoreSums(p, total);
}

}  // namespace ovq::kernels::cuda
