#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_mma.cuh"

namespace ovq::kernels::cuda {
namespace {

constexpr int kWarps = kBlockThreads / 32;
constexpr int kWantedBlocks =
    2;  // per multiprocessor: one computes weights while another multiplies

// Offsets in shared memory, in chunks of 16 bytes.
struct PrefillLayout {
  int tile;    // Tile; in registers it would cost too many
  int rows;    // [n_warps][2] RowFactors::kChunks: queries, probes
  int folded;  // [n_warps][2 kPairs][32] float4: each lane's n tiles
  int blocks;  // BlockChunks
  int end;
};
template <int kSteps, int kPairs, class T>
__host__ __device__ constexpr PrefillLayout MakePrefillLayout(const PrefillPlan& plan) {
  PrefillLayout at = {};
  at.rows = (sizeof(Tile) + sizeof(uint4) - 1) / sizeof(uint4);
  at.folded = at.rows + plan.n_warps * 2 * RowFactors<kSteps>::kChunks;
  at.blocks = at.folded + plan.n_warps * 2 * kPairs * 32;
  at.end = at.blocks + BlockChunks<T>({16 * kSteps, 16 * kPairs}, plan.n_stages);
  return at;
}

// The tile is read from shared memory where needed: in registers it would leave too few of them.
__device__ inline Tile SharedTile() { return DynamicShared<const Tile>(0)[0]; }

// Starts the copies of block i.
template <class T>
__device__ inline void CopyBlock(const AttendArgs& args, const BlockDims& dims, int i,
                                 const BlockBuffer<T>& buffer) {
  const BlockView block = BlockAt(args, SharedTile(), i);
  CopyKeys(args, dims, block, buffer);
  CopyValues(dims, block, buffer);
  CommitCopies();
}

// The warp's weights over a block, in the layout of a factor A, and the scale of its output so far.
struct BlockWeights {
  float scale[2];
  uint32_t weights[kSlotPairs][4];
};

// The scores of the warp's queries over a block. If kProbes, its probes' best slots are updated by
// the way: each fragment of keys serves both.
template <bool kProbes, bool kExact, class T, int kSteps>
__device__ inline void ScoreBlock(const RowFactors<kSteps> (&factors)[2],
                                  const BlockBuffer<T>& buffer, int head_dim, int live,
                                  int first_slot, LaneRows& rows,
                                  float (&scores)[2 * kSlotPairs][4]) {
  constexpr int kAtOnce =
      2;  // pairs of n tiles; of all, the probes' scores would need too many registers
#pragma unroll
  for (int pair = 0; pair < kSlotPairs; pair += kAtOnce) {
    float some[kProbes ? 2 : 1][2 * kAtOnce][4];
    Scores<kExact>(factors, buffer.keys, pair, head_dim, some);
    if constexpr (kProbes) {
      ScaleScores(buffer, 16 * pair, some[1]);
      UpdateBest(some[1], 16 * pair, live, first_slot, rows);
    }
#pragma unroll
    for (int n = 0; n < 2 * kAtOnce; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[2 * pair + n][e] = some[0][n][e];
    }
  }
  ScaleScores(buffer, 0, scores);
}

// Turns scores into weights.
template <class T>
__device__ inline void WeighBlock(const AttendArgs& args, const BlockView& block,
                                  const BlockBuffer<T>& buffer, float (&scores)[2 * kSlotPairs][4],
                                  LaneRows& rows, BlockWeights& out) {
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
__device__ inline void AddBlock(const BlockDims& dims, SharedPtr<const uint4> values,
                                const BlockWeights& block, LaneRows& rows,
                                float (&acc)[2 * kPairs][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32, chunks = RowChunks(dims.values);
  if (__any_sync(kWholeWarp, block.scale[0] != 1 || block.scale[1] != 1)) {
#pragma unroll
    for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[n][e] *= block.scale[e / 2];
    }
  }
#pragma unroll
  for (int k = 0; k < kSlotPairs; ++k) {
    MmaBF16(rows.sum, block.weights[k], kOnes, kOnes);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      if (p * 16 >= dims.value_stride) break;
      AddValues(block.weights[k], values + ((16 * k + lane % 16) * chunks + lane / 16 + 2 * p),
                acc[2 * p], acc[2 * p + 1]);
    }
  }
}

// Ends a segment: writes its part to memory, or folds it.
template <int kPairs>
__device__ inline void EndSegment(const AttendArgs& args, int value_stride, int first_row,
                                  SharedPtr<float4> folded_tiles, LaneRows& rows,
                                  float (&acc)[2 * kPairs][4]) {
  const Tile tile = SharedTile();
  FoldFactors factors[2];
  if (tile.split) {
    WritePartialRows(args, tile, first_row, rows);
  } else {
    FoldRows(rows, factors);
  }
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
    if (n * 8 >= value_stride) break;
    if (tile.split) {
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

// Writes the best slots of the warp's probes, from row first_row of the tile on, to memory.
__device__ inline void EndProbes(const AttendArgs& args, const Tile& tile, int first_row,
                                 const LaneRows& rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Best best = BetterSlotOfLanes(BetterSlotOfLanes(rows.best[h], 1), 2);
    const int r = first_row + lane / 4 + 8 * h;
    if (lane % 4 != 0 || r >= tile.n_rows) continue;
    if (tile.split) {
      WritePartialBest(args, tile, r, best);
    } else {
      WriteBest(args, tile, r, best);
    }
  }
}

// Writes the output of the warp's queries, or merges the tile's segments if this thread block is
// the last of them.
__device__ inline void EndQueries(const AttendArgs& args, int value_stride, bool has_queries,
                                  int first_row, SharedPtr<const float4> folded_tiles,
                                  const LaneRows& rows) {
  const Tile tile = SharedTile();
  if (tile.split) {
    if (IsLastOfTile(args, tile)) FoldPartials<true>(args, tile);
    return;
  }
  const OutRows out = LaneOutRows(args, tile, first_row);
#pragma unroll 4
  for (int n = 0; has_queries && n < value_stride / 8; ++n) {
    const float4 done = folded_tiles[n * 32];
    const float folded[4] = {done.x, done.y, done.z, done.w};
    WriteOutTile(args, out, n, folded, rows.folded_sum);
  }
}

// Softmax attention for many rows, with the arithmetic of the decode kernel. Precision: bfloat16
// products, float32 sums, weights rounded to bfloat16.
//
// Launch: 128 threads per tile and all its segments, or one of them. Each of the first n_warps
// warps holds 16 queries and 16 probes, their scores over a block and the segment's output in
// registers, so that a fragment of keys that is read from shared memory serves both; finished
// segments are folded in shared memory. While a block is in use, the next one is loading. Bytes:
// every block of the rows' state once per tile. kExact: heads have 16 kSteps and 16 kPairs
// channels.
template <int kSteps, int kPairs, bool kExact, class T>
__global__ void __launch_bounds__(kBlockThreads, kPairs <= 8 ? kWantedBlocks : 1)
    AttendPrefillKernel(const __grid_constant__ AttendArgs args) {
  AllowNextKernel();
  {
    Tile found;
    const bool any = FindTile(args, found);
    WaitForKernelsBefore();
    if (!any) return;
    if (threadIdx.x == 0) DynamicShared<Tile>(0)[0] = found;
    __syncthreads();
  }
  constexpr int kKeys = 16 * kSteps, kValues = 16 * kPairs;
  const BlockDims dims = {kKeys, kValues, kExact ? kKeys : args.blocks.shape.head_dim,
                          kExact ? kValues : args.value_stride};
  const PrefillPlan plan = {args.tile_rows / kRowTile, args.n_stages};
  const PrefillLayout at = MakePrefillLayout<kSteps, kPairs, T>(plan);
  const int warp = static_cast<int>(threadIdx.x) / 32, first_row = warp * kRowTile;
  const int begin_block = SharedTile().begin_block, end_block = SharedTile().end_block;
  const auto buffer_at = [&](int i) {
    return BufferAt<T>(dims, at.blocks, plan.n_stages == 1 ? 0 : i % 2);
  };
  if (begin_block < end_block) CopyBlock(args, dims, begin_block, buffer_at(begin_block));

  const int n_queries = SharedTile().n_queries, n_rows = SharedTile().n_rows;
  const bool has_queries = first_row < n_queries, has_probes = first_row < n_rows - n_queries;
  RowFactors<kSteps> factors[2];
  LaneRows rows = FirstRows(args, SharedTile(), first_row);
  const SharedPtr<float4> folded_tiles =
      DynamicShared<float4>(at.folded * sizeof(uint4)) +
      (warp * 2 * kPairs * 32 + static_cast<int>(threadIdx.x) % 32);
  float acc[2 * kPairs][4] = {};
  if (has_queries) {
    const int chunk = at.rows + warp * 2 * RowFactors<kSteps>::kChunks;
    LoadFactors(args, SharedTile(), first_row, n_queries, chunk, factors[0]);
    LoadFactors(args, SharedTile(), n_queries + first_row, n_rows,
                chunk + RowFactors<kSteps>::kChunks, factors[1]);
#pragma unroll 1
    for (int n = 0; n < 2 * kPairs; ++n) folded_tiles[n * 32] = float4{0, 0, 0, 0};
  }
  for (int i = begin_block; i < end_block; ++i) {
    const BlockBuffer<T> buffer = buffer_at(i);
    if (plan.n_stages == 1 && i > begin_block) {
      __syncthreads();  // the only buffer is free
      CopyBlock(args, dims, i, buffer);
    }
    WaitCopies<0>();
    __syncthreads();  // the block has arrived, and the one before is done with
    WidenKeys(dims, buffer);
    WidenValues(dims, buffer);
    if (plan.n_stages > 1 && i + 1 < end_block) CopyBlock(args, dims, i + 1, buffer_at(i + 1));
    if (kWidened<T>) __syncthreads();
    if (!has_queries) continue;
    const BlockView block = BlockAt(args, SharedTile(), i);
    float scores[2 * kSlotPairs][4];
    BlockWeights weights;
    if (has_probes && block.live >= 0) {
      ScoreBlock<true, kExact>(factors, buffer, dims.head_dim, block.live, i * kBlockSlots, rows,
                               scores);
    } else {
      ScoreBlock<false, kExact>(factors, buffer, dims.head_dim, 0, 0, rows, scores);
    }
    WeighBlock(args, block, buffer, scores, rows, weights);
    AddBlock<kPairs>(dims, buffer.values, weights, rows, acc);
    if ((i + 1) % kCudaSegmentBlocks == 0 || i + 1 == SharedTile().n_blocks) {
      EndSegment<kPairs>(args, dims.value_stride, first_row, folded_tiles, rows, acc);
    }
  }
  if (has_probes) EndProbes(args, SharedTile(), n_queries + first_row, rows);
  EndQueries(args, dims.value_stride, has_queries, first_row, folded_tiles, rows);
}

// A kernel for heads of some sizes.
struct PrefillKernel {
  void (*run)(AttendArgs);
  PrefillLayout (*layout)(const PrefillPlan&);
  int wanted_blocks;

  size_t shared_bytes(const PrefillPlan& plan) const {
    return static_cast<size_t>(layout(plan).end) * sizeof(uint4);
  }
};
template <int kSteps, int kPairs, bool kExact>
PrefillKernel KernelFor(DType dtype) {
  return VisitSlots(dtype, []<ExactInBF16 T>(Slots<T>) {
    return PrefillKernel{AttendPrefillKernel<kSteps, kPairs, kExact, T>,
                         MakePrefillLayout<kSteps, kPairs, T>, kPairs <= 8 ? kWantedBlocks : 1};
  });
}
PrefillKernel SelectPrefillKernel(DType dtype, int head_dim, int value_stride) {
  return head_dim == 64 && value_stride == 64     ? KernelFor<4, 4, true>(dtype)
         : head_dim == 128 && value_stride == 128 ? KernelFor<8, 8, true>(dtype)
         : head_dim <= 128 && value_stride <= 128 ? KernelFor<8, 8, false>(dtype)
                                                  : KernelFor<16, 16, false>(dtype);
}

}  // namespace

PrefillPlan PlanAttendPrefill(DType dtype, int head_dim, int value_stride, size_t max_shared) {
  const PrefillKernel kernel = SelectPrefillKernel(dtype, head_dim, value_stride);
  for (int n_warps = kWarps; n_warps > 0; n_warps /= 2) {
    for (const int n_stages : {2, 1}) {
      if (kernel.shared_bytes({n_warps, n_stages}) <= max_shared) return {n_warps, n_stages};
    }
  }
  return {0, 0};
}

Occupancy PrepareAttendPrefill(DeviceContext& context, DType dtype, int head_dim,
                               int value_stride) {
  const PrefillKernel kernel = SelectPrefillKernel(dtype, head_dim, value_stride);
  const PrefillPlan plan =
      PlanAttendPrefill(dtype, head_dim, value_stride, context.cuda().max_shared_bytes);
  return RequestOccupancy(context, kernel.run, kernel.shared_bytes(plan), kernel.wanted_blocks);
}

void LaunchAttendPrefill(DeviceContext& context, const AttendArgs& args, uint32_t grid) {
  const PrefillKernel kernel =
      SelectPrefillKernel(args.blocks.dtype, args.blocks.shape.head_dim, args.value_stride);
  const PrefillPlan plan = {args.tile_rows / kRowTile, args.n_stages};
  LaunchEarly(context, kernel.run, grid, kBlockThreads, kernel.shared_bytes(plan), args);
}

}  // namespace ovq::kernels::cuda
