#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_mma.cuh"

namespace ovq::kernels::cuda {
namespace {

constexpr int kMaxWarps = 4;

// Offsets in shared memory, in chunks of 16 bytes.
struct PrefillLayout {
  int tile;    // Tile; in registers it would cost too many
  int rows;    // [16 n_warps][RowChunks(head_dim)]
  int block;   // one buffer
  int folded;  // [n_warps][value_stride / 8][32] float4: each lane's n tiles
  int end;
};
template <class T>
__host__ __device__ constexpr PrefillLayout MakePrefillLayout(int head_dim, int value_stride,
                                                              int n_warps) {
  PrefillLayout at = {};
  at.rows = (sizeof(Tile) + sizeof(uint4) - 1) / sizeof(uint4);
  at.block = at.rows + n_warps * kRowTile * RowChunks(head_dim);
  at.folded = at.block + BlockChunks<T>(head_dim, value_stride, 1);
  at.end = at.folded + n_warps * (value_stride / 8) * 32;
  return at;
}

// The tile is read from shared memory where needed: in registers it would leave too few of them.
__device__ inline Tile SharedTile() { return DynamicShared<const Tile>(0)[0]; }

// The rows of a warp.
struct WarpRows {
  int first;  // first row in the tile
  bool any, queries, probes;
  bool tile_queries;  // some warp has queries
};
__device__ inline WarpRows FindWarpRows(const Tile& tile) {
  const int first = static_cast<int>(threadIdx.x) / 32 * kRowTile;
  return {first, first < tile.n_rows, first < tile.n_queries,
          first < tile.n_rows && first + kRowTile > tile.n_queries &&
              tile.n_queries<tile.n_rows, tile.n_queries> 0};
}

// The buffer for the tile's i-th block.
template <class T>
__device__ inline BlockBuffer<T> BufferAt(const AttendArgs& args, const PrefillLayout& at, int i) {
  return BufferAt<T, 1>(args, at.block, i);
}

__device__ inline SharedPtr<float4> FoldedTiles(const AttendArgs& args, const PrefillLayout& at) {
  const int thread = static_cast<int>(threadIdx.x);
  return DynamicShared<float4>(at.folded * sizeof(uint4)) +
         (thread / 32 * (args.value_stride / 8) * 32 + thread % 32);
}

// Starts the first copies in two groups: keys and bias, then values.
template <class T>
__device__ inline void StartBlock(const AttendArgs& args, const PrefillLayout& at) {
  const Tile tile = SharedTile();
  if (tile.begin_block == tile.end_block) return;
  const BlockBuffer<T> buffer = BufferAt<T>(args, at, tile.begin_block);
  const BlockView block = BlockAt(args, tile, tile.begin_block);
  CopyKeys(args, block, buffer);
  CommitCopies();
  if (tile.n_queries > 0) CopyValues(args, block, buffer);
  CommitCopies();
}

// The warp's weights over a block, in the layout of a factor A, and the scale of its output so far.
struct BlockWeights {
  float scale[2];
  uint32_t weights[kSlotPairs][4];
};

// all_rows: the tile's rows.
template <class T>
__device__ inline void WeighBlock(const AttendArgs& args, int i, SharedPtr<const uint4> all_rows,
                                  const BlockBuffer<T>& buffer, const WarpRows& warp,
                                  LaneRows& rows, BlockWeights& out) {
  const int head_dim = args.blocks.shape.head_dim;
  float scores[2 * kSlotPairs][4];
  Scores<kSlotPairs>(all_rows + warp.first * RowChunks(head_dim), RowChunks(head_dim), buffer.keys,
                     0, head_dim, scores);
  ScaleScores(buffer, 0, scores);
  const BlockView block = BlockAt(args, SharedTile(), i);
  if (warp.probes && block.live >= 0) UpdateBest(scores, 0, block.live, i * kBlockSlots, rows);
  if (!warp.queries) return;
  float highest[2];
  MaskScores({block, buffer.bias, 0}, args.blocks.window, rows, scores, highest);
  RaiseMax(highest, rows, out.scale);
#pragma unroll
  for (int n = 0; n < 2 * kSlotPairs; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      out.weights[n / 2][n % 2 * 2 + h] = Weights(scores[n], h, rows.max[h]);
    }
  }
}

// acc = acc scale + weights . values.
template <int kPairs>
__device__ inline void AddBlock(const AttendArgs& args, SharedPtr<const uint4> values,
                                const BlockWeights& block, LaneRows& rows,
                                float (&acc)[2 * kPairs][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, chunks = RowChunks(args.value_stride);
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[n][e] *= block.scale[e / 2];
  }
#pragma unroll
  for (int k = 0; k < kSlotPairs; ++k) {
    MmaBF16(rows.sum, block.weights[k], kOnes, kOnes);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p * 16 >= args.value_stride) break;
      AddValues(block.weights[k], values + ((16 * k + lane % 16) * chunks + lane / 16 + 2 * p),
                acc[2 * p], acc[2 * p + 1]);
    }
  }
}

// Ends a segment: writes its part to memory, or folds it.
template <int kPairs>
__device__ inline void EndSegment(const AttendArgs& args, const Tile& tile, int first_row,
                                  SharedPtr<float4> folded_tiles, LaneRows& rows,
                                  float (&acc)[2 * kPairs][4]) {
  FoldFactors factors[2];
  if (args.segments > 0) {
    WritePartialRows(args, tile, first_row, rows);
  } else {
    FoldRows(rows, factors);
  }
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
    if (n * 8 >= args.value_stride) break;
    if (args.segments > 0) {
      WritePartialTile(args, tile, first_row, n, acc[n]);
      continue;
    }
    const float4 before = folded_tiles[n * 32];
    float folded[4] = {before.x, before.y, before.z, before.w};
    FoldTile(factors, acc[n], folded);
    folded_tiles[n * 32] = make_float4(folded[0], folded[1], folded[2], folded[3]);
#pragma unroll
    for (int e = 0; e < 4; ++e) acc[n][e] = 0;
  }
}

// Writes the best slots of the warp's probes to memory.
__device__ inline void EndProbes(const AttendArgs& args, const Tile& tile, int first_row,
                                 const LaneRows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Best best = BetterSlotOfLanes(BetterSlotOfLanes(rows.best[h], 1), 2);
    const int r = first_row + lane / 4 + 8 * h;
    if (lane % 4 != 0 || r < tile.n_queries || r >= tile.n_rows) continue;
    if (args.segments > 0) {
      WritePartialBest(args, tile, r, best);
    } else {
      WriteBest(args, tile, r, best);
    }
  }
}

// Softmax attention for many rows, with the arithmetic of the decode kernel. A tile of probes only
// reads the keys of the dictionary. Precision: bfloat16 products, float32 sums, weights rounded to
// bfloat16.
//
// Launch: n_warps (1, 2 or 4) warps per tile of 16 n_warps rows and all its segments, or one of
// them. A warp holds 16 rows, their scores over a block and the segment's output in registers;
// finished segments are folded in shared memory. A block's values load while its keys are in use,
// and the next block's keys while its values are. Bytes: every block of the rows' state once per
// tile.
template <int kPairs, class T>
__global__ void __launch_bounds__(kMaxWarps * 32, kPairs == 4   ? 3
                                                  : kPairs == 8 ? 2
                                                                : 1)
    AttendPrefillKernel(const __grid_constant__ AttendArgs args) {
  const int tile_rows = static_cast<int>(blockDim.x) / 32 * kRowTile;
  {
    Tile found;
    if (!FindTile(args, tile_rows, found)) return;
    if (threadIdx.x == 0) DynamicShared<Tile>(0)[0] = found;
    __syncthreads();
  }
  const int head_dim = args.blocks.shape.head_dim;
  const PrefillLayout at = MakePrefillLayout<T>(head_dim, args.value_stride, tile_rows / kRowTile);
  const SharedPtr<uint4> all_rows = DynamicShared<uint4>(at.rows * sizeof(uint4));
  const SharedPtr<float4> folded_tiles = FoldedTiles(args, at);
  const WarpRows warp = FindWarpRows(SharedTile());

  StartBlock<T>(args, at);
  LoadRows(args, SharedTile(), tile_rows, all_rows);
  LaneRows rows = FirstRows(args, SharedTile(), warp.first);
  float acc[2 * kPairs][4] = {};
  if (args.segments == 0) {
#pragma unroll 1
    for (int n = 0; n < args.value_stride / 8; ++n) folded_tiles[n * 32] = float4{0, 0, 0, 0};
  }
  const int end_block = SharedTile().end_block;
  for (int i = SharedTile().begin_block; i < end_block; ++i) {
    const BlockBuffer<T> buffer = BufferAt<T>(args, at, i), next = BufferAt<T>(args, at, i + 1);
    BlockWeights weights;
    WaitCopies<1>();
    WidenKeys(args, buffer);
    __syncthreads();  // keys have arrived
    if (warp.any) WeighBlock(args, i, all_rows, buffer, warp, rows, weights);
    __syncthreads();  // keys may be overwritten
    if (i + 1 < end_block) CopyKeys(args, BlockAt(args, SharedTile(), i + 1), next);
    CommitCopies();
    if (warp.tile_queries) {
      WaitCopies<1>();
      WidenValues(args, buffer);
      __syncthreads();  // values have arrived
      if (warp.queries) {
        AddBlock<kPairs>(args, buffer.values, weights, rows, acc);
        if ((i + 1) % kCudaSegmentBlocks == 0 || i + 1 == SharedTile().n_blocks) {
          EndSegment<kPairs>(args, SharedTile(), warp.first, folded_tiles, rows, acc);
        }
      }
      __syncthreads();  // values may be overwritten
      if (i + 1 < end_block) CopyValues(args, BlockAt(args, SharedTile(), i + 1), next);
    }
    CommitCopies();
  }
  WaitCopies<0>();
  const Tile tile = SharedTile();
  if (warp.probes) EndProbes(args, tile, warp.first, rows);
  if (args.segments > 0) {
    if (IsLastOfTile(args, tile)) FoldPartials<true>(args, tile);
    return;
  }
  if (!warp.queries) return;
#pragma unroll 1
  for (int n = 0; n < args.value_stride / 8; ++n) {
    const float4 done = folded_tiles[n * 32];
    const float folded[4] = {done.x, done.y, done.z, done.w};
    WriteOutTile(args, tile, warp.first, n, folded, rows.folded_sum);
  }
}

using PrefillKernelFn = void (*)(AttendArgs);
template <class T>
PrefillKernelFn SelectPrefillKernel(int value_stride) {
  return value_stride <= 64    ? AttendPrefillKernel<4, T>
         : value_stride <= 128 ? AttendPrefillKernel<8, T>
                               : AttendPrefillKernel<16, T>;
}

}  // namespace

size_t AttendPrefillShared(DType dtype, int head_dim, int value_stride, int n_warps) {
  const PrefillLayout at = VisitSlots(dtype, [=]<ExactInBF16 T>(Slots<T>) {
    return MakePrefillLayout<T>(head_dim, value_stride, n_warps);
  });
  return static_cast<size_t>(at.end) * sizeof(uint4);
}

void LaunchAttendPrefill(DeviceContext& context, const AttendArgs& args, uint32_t grid,
                         int n_warps) {
  const DType dtype = args.blocks.dtype;
  const size_t shared =
      AttendPrefillShared(dtype, args.blocks.shape.head_dim, args.value_stride, n_warps);
  const auto kernel = VisitSlots(
      dtype, [&]<ExactInBF16 T>(Slots<T>) { return SelectPrefillKernel<T>(args.value_stride); });
  Launch(context, kernel, grid, n_warps * 32, shared, args);
}

}  // namespace ovq::kernels::cuda
