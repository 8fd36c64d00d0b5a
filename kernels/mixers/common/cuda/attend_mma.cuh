// The tensor-core arithmetic that the decode and the prefill kernel share, so that a row's bits are
// the same in both: which products are summed in which order for a score, a weight and an output.
//
// A warp works on 16 rows. Lane (g, t) = (lane / 4, lane % 4) holds the rows g and g + 8 (h = 0, 1)
// and, of an n tile of 8 slots or channels, the columns 2t and 2t + 1. This rests on one
// assumption, which the tests on a GPU check: an element of a product depends on its row of A and
// its column of B alone, not on where in the 16 x 8 tile they stand, nor on the other rows and
// columns.
//
// Scores and the running maximum are in units of ln 2: (q . k + bias) log2 e, so that a weight is
// one exp2. Weights are rounded to bfloat16; their sum is a product with ones, which adds the
// rounded weights in the order in which the output adds weight times value.
#pragma once

#include <cstdint>

#include "kernels/mixers/common/cuda/attend_block.cuh"

namespace ovq::kernels::cuda {

inline constexpr int kRowTile = 16;
inline constexpr int kSlotPairs = kBlockSlots / 16;  // pairs of n tiles in a block's scores
inline constexpr float kLog2E = 1.44269504f;
inline constexpr uint32_t kOnes = 0x3f803f80u;  // two bfloat16

// 16 rows as factors A of their products with keys, in bfloat16, of at most 16 kSteps channels: in
// registers or, if they are too wide for that, in shared memory, where every lane has a chunk of a
// step.
template <int kSteps>
struct RowFactors {
  static constexpr bool kShared = kSteps > 8;
  static constexpr int kChunks = kShared ? 32 * kSteps : 0;  // in shared memory
  SharedPtr<uint4> chunks = {};
  uint32_t steps[kShared ? 1 : kSteps][4] = {};

  // The lane's part of step k.
  __device__ void Get(int k, uint32_t (&a)[4]) const {
    if constexpr (kShared) {
      const uint4 chunk = chunks[32 * k];
      a[0] = chunk.x, a[1] = chunk.y, a[2] = chunk.z, a[3] = chunk.w;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = steps[k][i];
    }
  }
};

// The rows from row `first` of the tile on; zeros from row `end` on. In shared memory, at chunk
// `at`, only the steps first_step, first_step + step, ... are written.
template <int kSteps>
__device__ inline void LoadFactors(const AttendArgs& args, const Tile& tile, int first, int end,
                                   uint32_t at, RowFactors<kSteps>& rows, int first_step = 0,
                                   int step = 1) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  rows.chunks = DynamicShared<uint4>(at * sizeof(uint4)) + lane;
  const float* row[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first + lane / 4 + 8 * h;
    row[h] = r < end ? RowData(args, tile, r) + lane % 4 * 2 : nullptr;
  }
#pragma unroll(RowFactors <kSteps>::kShared ? 1 : kSteps)
  for (int k = 0; k < kSteps; ++k) {
    if (16 * k >= args.blocks.shape.head_dim) break;
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* from = row[i % 2];
      const int c = 16 * k + i / 2 * 8;
      a[i] = from == nullptr ? 0 : PackBF16(from[c], from[c + 1]);
    }
    if constexpr (RowFactors<kSteps>::kShared) {
      if (k % step == first_step) rows.chunks[32 * k] = uint4{a[0], a[1], a[2], a[3]};
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows.steps[k][i] = a[i];
    }
  }
}

// scores[s] = rows[s] . keys of kTiles n tiles, in pairs from first_pair on; the channels in
// ascending order, 16 to an instruction. kExact: there are 16 kSteps of them.
template <bool kExact, int kSets, int kTiles, int kSteps, int kOf>
__device__ inline void Scores(const RowFactors<kSteps> (&rows)[kOf], SharedPtr<const uint4> keys,
                              int first_pair, int head_dim, float (&scores)[kSets][kTiles][4]) {
  static_assert(kSets <= kOf && kTiles % 2 == 0);
  constexpr int kPairs = kTiles / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const SharedPtr<const uint4> at = keys + lane % 16 * kKeyChunks;
#pragma unroll
  for (int n = 0; n < kSets * kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n / kTiles][n % kTiles][e] = 0;
  }
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    if (!kExact && 16 * k >= head_dim) break;
    uint32_t b[kPairs][4];
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      LoadMatricesTransposed(
          b[p], at + (k * 16 * kKeyChunks + KeyChunk(lane, lane / 16 + 2 * (first_pair + p))));
    }
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      uint32_t a[4];
      rows[s].Get(k, a);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        MmaBF16(scores[s][2 * p], a, b[p][0], b[p][1]);
        MmaBF16(scores[s][2 * p + 1], a, b[p][2], b[p][3]);
      }
    }
  }
}

// The two rows of a lane.
struct LaneRows {
  int slot[2];   // of the row's token, in the tile's own block
  float max[2];  // of the segment so far
  float sum[4];  // an n tile with equal columns
  Best best[2];  // among this lane's columns
  float folded_max[2], folded_sum[2];
};
__device__ inline LaneRows FirstRows(const AttendArgs& args, const Tile& tile, int first_row) {
  LaneRows rows;
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first_row + g + 8 * h;
    rows.slot[h] = tile.slot + (r < tile.n_rows ? tile.token(args, r) : 0);
    rows.max[h] = rows.folded_max[h] = kLowestScore;
    rows.sum[h] = rows.sum[h + 2] = rows.folded_sum[h] = 0;
    rows.best[h] = NoBest();
  }
  return rows;
}

// Updates the best slots with the unbiased scores of a dictionary block whose first slot is
// first_slot; the scores are those of the slots from `slot` on. Those of slots that are not live
// become -infinity.
template <int kTiles>
__device__ inline void UpdateBest(float (&scores)[kTiles][4], int slot, int live, int first_slot,
                                  LaneRows& rows) {
  const int column = slot + static_cast<int>(threadIdx.x) % 4 * 2;
  if (live < kBlockSlots) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (column + 8 * n + e % 2 >= live) scores[n][e] = -__int_as_float(0x7f800000);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (scores[n][e] > rows.best[e / 2].score) {
        rows.best[e / 2] = {scores[n][e], first_slot + column + 8 * n + e % 2};
      }
    }
  }
}

// The origin of scores: slots of a block from `slot` on.
struct ScoredSlots {
  BlockView block;
  SharedPtr<const uint4> bias;  // [64] float
  int slot;
};

// Adds the bias, changes the unit to ln 2, closes slots; returns the rows' highest score in
// `highest`.
template <int kTiles>
__device__ inline void MaskScores(const ScoredSlots& slots, int32_t window, const LaneRows& rows,
                                  float (&scores)[kTiles][4], float (&highest)[2]) {
  const int column = slots.slot + static_cast<int>(threadIdx.x) % 4 * 2;
  const SharedPtr<const float2> bias_at = SharedCast<const float2>(slots.bias) + column / 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float2 add = bias_at[4 * n];
#pragma unroll
    for (int e = 0; e < 4; ++e)
      scores[n][e] = (scores[n][e] + (e % 2 == 0 ? add.x : add.y)) * kLog2E;
  }
  if (!AllOpen(slots.block, window)) {
    int lo[2], hi[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) OpenSlots(slots.block, window, rows.slot[h], lo[h], hi[h]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int at = column + 8 * n + e % 2;
        const bool open = at >= lo[e / 2] && at < hi[e / 2];
        if (!open) scores[n][e] = -__int_as_float(0x7f800000);
      }
    }
  }
  highest[0] = highest[1] = kLowestScore;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) highest[e / 2] = fmaxf(highest[e / 2], scores[n][e]);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    highest[h] = fmaxf(highest[h], __shfl_xor_sync(kWholeWarp, highest[h], 1));
    highest[h] = fmaxf(highest[h], __shfl_xor_sync(kWholeWarp, highest[h], 2));
  }
}

// Raises the running maximum to `highest` and scales the running sum; scale is for the output.
__device__ inline void RaiseMax(const float (&highest)[2], LaneRows& rows, float (&scale)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float new_max = fmaxf(rows.max[h], highest[h]);
    scale[h] = Exp2Approx(rows.max[h] - new_max);
    rows.max[h] = new_max;
    rows.sum[2 * h] *= scale[h];
    rows.sum[2 * h + 1] *= scale[h];
  }
}

// The weights of two adjacent columns of row g + 8 h.
__device__ inline uint32_t Weights(const float (&scores)[4], int h, float max) {
  return PackBF16(Exp2Approx(scores[2 * h] - max), Exp2Approx(scores[2 * h + 1] - max));
}

// acc (a pair of n tiles of channels) += weights of 16 slots . values; at: the lane's row address.
__device__ inline void AddValues(const uint32_t (&weights)[4], SharedPtr<const uint4> at,
                                 float (&low)[4], float (&high)[4]) {
  uint32_t b[4];
  LoadMatricesTransposed(b, at);
  MmaBF16(low, weights, b[0], b[1]);
  MmaBF16(high, weights, b[2], b[3]);
}

// Ends a segment: resets the rows; returns the factors for the fold.
__device__ inline void FoldRows(LaneRows& rows, FoldFactors (&factors)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factors[h] = Fold<true>(rows.max[h], rows.sum[2 * h], rows.folded_max[h], rows.folded_sum[h]);
    rows.max[h] = kLowestScore;
    rows.sum[2 * h] = rows.sum[2 * h + 1] = 0;
  }
}

__device__ inline void FoldTile(const FoldFactors (&factors)[2], const float (&acc)[4],
                                float (&folded)[4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e) folded[e] = FoldValue(factors[e / 2], folded[e], acc[e]);
}

// The lane's rows of tokens.out, from row first_row of the tile on; -1: the tile has no such query.
struct OutRows {
  int64_t at[2];
};
__device__ inline OutRows LaneOutRows(const AttendArgs& args, const Tile& tile, int first_row) {
  OutRows out;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first_row + static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h;
    out.at[h] = r < tile.n_queries ? OutRow(args, tile, r) : -1;
  }
  return out;
}
// Writes columns 8 n + 2t and 8 n + 2t + 1 of the lane's rows.
__device__ inline void WriteOutTile(const AttendArgs& args, const OutRows& out, int n,
                                    const float (&folded)[4], const float (&sum)[2]) {
  const int column = 8 * n + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (out.at[h] < 0) continue;
    WriteOut(args, out.at[h], column, folded[2 * h] / sum[h], folded[2 * h + 1] / sum[h]);
  }
}
__device__ inline void WritePartialTile(const AttendArgs& args, const Tile& tile, int first_row,
                                        int n, const float (&acc)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first_row + lane / 4 + 8 * h;
    if (r >= tile.n_queries) continue;
    float* row = PartialRow(args, tile, tile.begin_block / kCudaSegmentBlocks, r) + kPartialHeader;
    *reinterpret_cast<float2*>(row + 8 * n + lane % 4 * 2) =
        make_float2(acc[2 * h], acc[2 * h + 1]);
  }
}
__device__ inline void WritePartialRows(const AttendArgs& args, const Tile& tile, int first_row,
                                        const LaneRows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane % 4 != 0) return;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first_row + lane / 4 + 8 * h;
    if (r >= tile.n_queries) continue;
    float* row = PartialRow(args, tile, tile.begin_block / kCudaSegmentBlocks, r);
    row[0] = rows.max[h];
    row[1] = rows.sum[2 * h];
  }
}

}  // namespace ovq::kernels::cuda
