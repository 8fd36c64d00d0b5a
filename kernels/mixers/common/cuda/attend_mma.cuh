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

// Loads the tile's rows as bfloat16 to shared memory, n_rows of them [RowChunks(head_dim)] chunks
// apart; rows beyond the tile's are zero.
__device__ inline void LoadRows(const AttendArgs& args, const Tile& tile, int n_rows,
                                SharedPtr<uint4> to) {
  const int pairs = args.blocks.shape.head_dim / 2;
  const int stride = RowChunks(args.blocks.shape.head_dim) * 4;
  const SharedPtr<uint32_t> words = SharedCast<uint32_t>(to);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int r = warp; r < n_rows; r += static_cast<int>(blockDim.x) / 32) {
    const float* row = r < tile.n_rows ? RowData(args, tile, r) : nullptr;
    for (int i = lane; i < pairs; i += 32) {
      words[r * stride + i] = row == nullptr ? 0u : PackBF16(row[2 * i], row[2 * i + 1]);
    }
  }
}

// scores = rows . keys of kPairs pairs of n tiles from first_pair on; the channels in ascending
// order, 16 to an instruction. rows: the warp's 16, stride chunks apart.
template <int kPairs>
__device__ inline void Scores(SharedPtr<const uint4> rows, int stride, SharedPtr<const uint4> keys,
                              int first_pair, int head_dim, float (&scores)[2 * kPairs][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const SharedPtr<const uint4> a_at = rows + (lane % 16 * stride + lane / 16);
  const SharedPtr<const uint4> b_at = keys + lane % 16 * kKeyChunks;
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[n][e] = 0;
  }
#pragma unroll 2
  for (int k = 0; k < head_dim / 16; ++k) {
    uint32_t a[4];
    LoadMatrices(a, a_at + 2 * k);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      uint32_t b[4];
      LoadMatricesTransposed(
          b, b_at + (k * 16 * kKeyChunks + KeyChunk(lane, lane / 16 + 2 * (first_pair + p))));
      MmaBF16(scores[2 * p], a, b[0], b[1]);
      MmaBF16(scores[2 * p + 1], a, b[2], b[3]);
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
// first_slot; the scores are those of the slots from `slot` on.
template <int kTiles>
__device__ inline void UpdateBest(const float (&scores)[kTiles][4], int slot, int live,
                                  int first_slot, LaneRows& rows) {
  const int column = slot + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = column + 8 * n + e % 2;
      if (at < live && scores[n][e] > rows.best[e / 2].score) {
        rows.best[e / 2] = {scores[n][e], first_slot + at};
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
  const SharedPtr<const float2> bias_at = SharedCast<const float2>(slots.bias);
  int lo[2], hi[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    OpenSlots(slots.block, window, rows.slot[h], lo[h], hi[h]);
    highest[h] = kLowestScore;
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float2 add = bias_at[(column + 8 * n) / 2];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = column + 8 * n + e % 2;
      const bool open = at >= lo[e / 2] && at < hi[e / 2];
      const float score = (scores[n][e] + (e % 2 == 0 ? add.x : add.y)) * kLog2E;
      scores[n][e] = open ? score : -__int_as_float(0x7f800000);
      highest[e / 2] = fmaxf(highest[e / 2], scores[n][e]);
    }
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

// Writes columns 8 n + 2t and 8 n + 2t + 1 of the lane's rows, from row first_row of the tile on.
__device__ inline void WriteOutTile(const AttendArgs& args, const Tile& tile, int first_row, int n,
                                    const float (&folded)[4], const float (&sum)[2]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = first_row + lane / 4 + 8 * h;
    if (r >= tile.n_queries) continue;
    WriteOut(args, tile, r, 8 * n + lane % 4 * 2, folded[2 * h] / sum[h]);
    WriteOut(args, tile, r, 8 * n + lane % 4 * 2 + 1, folded[2 * h + 1] / sum[h]);
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
