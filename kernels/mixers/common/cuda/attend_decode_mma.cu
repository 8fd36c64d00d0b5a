#include <algorithm>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_launch.h"
#include "kernels/mixers/common/cuda/attend_mma.cuh"

namespace ovq::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kMinStages = 2, kMaxStages = 4;
constexpr int kWantedBlocks = 3;  // per multiprocessor: while one waits for memory, others compute
static_assert(kWarps * 32 == kBlockThreads);
constexpr int kWeightChunks = kBlockSlots / 8 + 1;  // 16-byte chunks of a row of weights

// Offsets in shared memory, in chunks of 16 bytes.
struct DecodeLayout {
  int rows;     // RowFactors::kChunks
  int weights;  // [16][kWeightChunks] bfloat16
  int highest;  // [kWarps][16] float2: a row's highest score; later its best score and slot
  int blocks;   // BlockChunks
  int end;
};
template <int kSteps, int kPairs, class T>
__host__ __device__ constexpr DecodeLayout MakeDecodeLayout(int n_stages) {
  DecodeLayout at = {};
  at.weights = at.rows + RowFactors<kSteps>::kChunks;
  at.highest = at.weights + kRowTile * kWeightChunks;
  at.blocks = at.highest + kWarps * kRowTile / 2;
  at.end = at.blocks + BlockChunks<T>({16 * kSteps, 16 * kWarps * kPairs}, n_stages);
  return at;
}

// This warp's share of the output: the pairs warp, warp + 4, ... of n tiles.
template <int kPairs>
struct Accumulators {
  float acc[2 * kPairs][4];
  float folded[2 * kPairs][4];
};

// Starts the copies of block i in two groups: keys and bias, then values. Groups are closed even
// when empty, so that they can be counted.
template <class T>
__device__ inline void CopyBlock(const AttendArgs& args, const BlockDims& dims, const Tile& tile,
                                 int i, const BlockBuffer<T>& buffer) {
  const bool any = i < tile.end_block;
  const BlockView block = BlockAt(args, tile, any ? i : tile.begin_block);
  if (any) CopyKeys(args, dims, block, buffer);
  CommitCopies();
  if (any && tile.n_queries > 0) CopyValues(dims, block, buffer);
  CommitCopies();
}

// Waits for the keys of the oldest block on its way, behind which are n_stages - 2 more; or for the
// values of the block whose keys are in use, behind which are n_stages - 1.
__device__ inline void WaitForKeys(int n_stages) {
  if (n_stages == 2) WaitCopies<1>();
  if (n_stages == 3) WaitCopies<3>();
  if (n_stages == 4) WaitCopies<5>();
}
__device__ inline void WaitForValues(int n_stages) {
  if (n_stages == 2) WaitCopies<2>();
  if (n_stages == 3) WaitCopies<4>();
  if (n_stages == 4) WaitCopies<6>();
}

// Ends a segment: writes its part to memory, or folds it.
template <int kPairs>
__device__ inline void EndSegment(const AttendArgs& args, const Tile& tile, LaneRows& rows,
                                  Accumulators<kPairs>& out) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  FoldFactors factors[2];
  if (tile.split) {
    if (warp == 0) WritePartialRows(args, tile, 0, rows);
  } else {
    FoldRows(rows, factors);
  }
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int pair = warp + p * kWarps;
    if (pair * 16 >= args.value_stride) continue;
#pragma unroll
    for (int n = 2 * p; n < 2 * p + 2; ++n) {
      if (tile.split) {
        WritePartialTile(args, tile, 0, 2 * pair + n % 2, out.acc[n]);
      } else {
        FoldTile(factors, out.acc[n], out.folded[n]);
#pragma unroll
        for (int e = 0; e < 4; ++e) out.acc[n][e] = 0;
      }
    }
  }
}

// Writes the best slots of the tile's probes, found by all lanes and warps, to memory.
__device__ inline void EndProbes(const AttendArgs& args, const Tile& tile, const LaneRows& rows,
                                 SharedPtr<float2> exchange) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Best best = BetterSlotOfLanes(BetterSlotOfLanes(rows.best[h], 1), 2);
    if (lane % 4 == 0) {
      exchange[thread / 32 * kRowTile + lane / 4 + 8 * h] =
          make_float2(best.score, __int_as_float(best.slot));
    }
  }
  __syncthreads();
  if (thread < tile.n_queries || thread >= tile.n_rows) return;
  Best best = NoBest();
  for (int w = 0; w < kWarps; ++w) {
    const float2 other = exchange[w * kRowTile + thread];
    best = BetterSlot(best, {other.x, __float_as_int(other.y)});
  }
  if (tile.split) {
    WritePartialBest(args, tile, thread, best);
  } else {
    WriteBest(args, tile, thread, best);
  }
}

// Computes the weights of a block, which all warps share, and adds the block to this warp's
// channels of the output. All warps have written their highest scores to `highest` before the next
// barrier.
template <int kPairs>
__device__ inline void AddBlock(const DecodeLayout& at, const BlockDims& dims,
                                SharedPtr<const uint4> values, const float (&scores)[2][4],
                                LaneRows& rows, Accumulators<kPairs>& out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const SharedPtr<float2> exchange = DynamicShared<float2>(at.highest * sizeof(uint4));
  const SharedPtr<uint4> weights = DynamicShared<uint4>(at.weights * sizeof(uint4));
  float highest[2] = {kLowestScore, kLowestScore}, scale[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int w = 0; w < kWarps; ++w) {
      const float2 other = exchange[w * kRowTile + lane / 4 + 8 * h];
      highest[h] = fmaxf(highest[h], other.x);
    }
  }
  RaiseMax(highest, rows, scale);
  const SharedPtr<uint32_t> words = SharedCast<uint32_t>(weights);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      words[(lane / 4 + 8 * h) * kWeightChunks * 4 + (warp * 2 + n) * 4 + lane % 4] =
          Weights(scores[n], h, rows.max[h]);
    }
  }
#pragma unroll
  for (int n = 0; n < 2 * kPairs; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out.acc[n][e] *= scale[e / 2];
  }
  __syncthreads();
  const int value_chunks = RowChunks(dims.values);
#pragma unroll
  for (int k = 0; k < kSlotPairs; ++k) {
    uint32_t a[4];
    LoadMatrices(a, weights + (lane % 16 * kWeightChunks + lane / 16 + 2 * k));
    MmaBF16(rows.sum, a, kOnes, kOnes);
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const int pair = warp + p * kWarps;
      if (pair * 16 >= dims.value_stride) continue;
      AddValues(a, values + ((16 * k + lane % 16) * value_chunks + lane / 16 + 2 * pair),
                out.acc[2 * p], out.acc[2 * p + 1]);
    }
  }
}

// Writes this warp's channels of the output.
template <int kPairs>
__device__ inline void WriteOutput(const AttendArgs& args, const Tile& tile, const LaneRows& rows,
                                   const Accumulators<kPairs>& out) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const OutRows out_rows = LaneOutRows(args, tile, 0);
#pragma unroll
  for (int p = 0; p < kPairs; ++p) {
    const int pair = warp + p * kWarps;
    if (pair * 16 >= args.value_stride) continue;
    WriteOutTile(args, out_rows, 2 * pair, out.folded[2 * p], rows.folded_sum);
    WriteOutTile(args, out_rows, 2 * pair + 1, out.folded[2 * p + 1], rows.folded_sum);
  }
}

// Softmax attention over dictionary and recent blocks for few rows (OVQ paper eq. 15); the same
// pass finds the keys' nearest centroids:
//   out = sum_j w_j v_j / sum_j w_j,  w_j = 2^((q . k_j + ln count_j) log2 e - max)
// Precision: bfloat16 products, float32 sums, weights rounded to bfloat16. Launch: 128 threads per
// tile of 16 rows and segment (or all segments, if they are not split). The warps share a block:
// each scores 16 of its 64 slots, then sums a quarter of the value channels. Two to four blocks are
// loading or in use, so that the kernel never waits for memory. Bytes: every block of the row's
// state once, 128 (head_dim + value_stride) + 256 of bias. T: BF16, or Int8 with half as many bytes
// and 128 of exponents.
template <int kSteps, int kPairs, bool kExact, class T>
__global__ void __launch_bounds__(kBlockThreads, kSteps <= 8 ? kWantedBlocks : 1)
    AttendDecodeKernel(const __grid_constant__ AttendArgs args) {
  AllowNextKernel();
  Tile tile;
  const bool any = FindTile(args, tile);
  WaitForKernelsBefore();
  if (!any) return;
  constexpr DecodeLayout at = MakeDecodeLayout<kSteps, kPairs, T>(0);
  constexpr int kKeys = 16 * kSteps, kValues = 16 * kWarps * kPairs;
  const BlockDims dims = {kKeys, kValues, kExact ? kKeys : args.blocks.shape.head_dim,
                          kExact ? kValues : args.value_stride};
  const SharedPtr<float2> exchange = DynamicShared<float2>(at.highest * sizeof(uint4));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  const int n_stages = args.n_stages;
  int stage = 0, next_stage = n_stages - 1;
  for (int i = 0; i < n_stages - 1; ++i) {
    CopyBlock(args, dims, tile, tile.begin_block + i, BufferAt<T>(dims, at.blocks, i));
  }
  RowFactors<kSteps> factors[1];
  LoadFactors(args, tile, 0, tile.n_rows, at.rows, factors[0], warp, kWarps);
  LaneRows rows = FirstRows(args, tile, 0);
  Accumulators<kPairs> out = {};
  for (int i = tile.begin_block; i < tile.end_block; ++i) {
    const BlockView block = BlockAt(args, tile, i);
    const BlockBuffer<T> buffer = BufferAt<T>(dims, at.blocks, stage);
    stage = stage + 1 == n_stages ? 0 : stage + 1;
    WaitForKeys(n_stages);
    WidenKeys(dims, buffer);
    __syncthreads();  // keys have arrived; the previous block's buffer is free
    CopyBlock(args, dims, tile, i + n_stages - 1, BufferAt<T>(dims, at.blocks, next_stage));
    next_stage = next_stage + 1 == n_stages ? 0 : next_stage + 1;
    float scores[1][2][4];
    Scores<kExact>(factors, buffer.keys, warp, dims.head_dim, scores);
    ScaleScores(buffer, warp * 16, scores[0]);
    if (block.live >= 0 && tile.n_queries < tile.n_rows) {
      UpdateBest(scores[0], warp * 16, block.live, i * kBlockSlots, rows);
    }
    if (tile.n_queries == 0) {
      if (kWidened<T>) __syncthreads();  // keys may be overwritten
      continue;
    }
    float highest[2];
    MaskScores({block, buffer.bias, warp * 16}, args.blocks.window, rows, scores[0], highest);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (lane % 4 == 0) {
        exchange[warp * kRowTile + lane / 4 + 8 * h] = make_float2(highest[h], 0.0f);
      }
    }
    WaitForValues(n_stages);
    WidenValues(dims, buffer);
    __syncthreads();  // values and every warp's highest scores have arrived
    AddBlock(at, dims, buffer.values, scores[0], rows, out);
    if ((i + 1) % kCudaSegmentBlocks == 0 || i + 1 == tile.n_blocks) {
      EndSegment(args, tile, rows, out);
    }
  }
  WaitCopies<0>();
  if (tile.n_queries < tile.n_rows) EndProbes(args, tile, rows, exchange);
  if (tile.split) {
    if (IsLastOfTile(args, tile)) FoldPartials<true>(args, tile);
    return;
  }
  WriteOutput(args, tile, rows, out);
}

// The kernel for heads of that size, and its shared memory.
struct DecodeKernel {
  void (*run)(AttendArgs);
  DecodeLayout (*layout)(int n_stages);

  size_t shared_bytes(int n_stages) const {
    return static_cast<size_t>(layout(n_stages).end) * sizeof(uint4);
  }
};
template <int kSteps, int kPairs, bool kExact>
DecodeKernel KernelFor(DType dtype) {
  return VisitSlots(dtype, []<ExactInBF16 T>(Slots<T>) {
    return DecodeKernel{AttendDecodeKernel<kSteps, kPairs, kExact, T>,
                        MakeDecodeLayout<kSteps, kPairs, T>};
  });
}
DecodeKernel SelectDecodeKernel(DType dtype, int head_dim, int value_stride) {
  return head_dim == 64 && value_stride == 64     ? KernelFor<4, 1, true>(dtype)
         : head_dim == 128 && value_stride == 128 ? KernelFor<8, 2, true>(dtype)
         : head_dim <= 128 && value_stride <= 128 ? KernelFor<8, 2, false>(dtype)
                                                  : KernelFor<16, 4, false>(dtype);
}

}  // namespace

size_t AttendDecodeShared(DType dtype, int head_dim, int value_stride) {
  return SelectDecodeKernel(dtype, head_dim, value_stride).shared_bytes(kMinStages);
}

Occupancy PrepareAttendDecode(DeviceContext& context, DType dtype, int head_dim, int value_stride) {
  const DecodeKernel kernel = SelectDecodeKernel(dtype, head_dim, value_stride);
  return RequestOccupancy(context, kernel.run, kernel.shared_bytes(kMinStages), kWantedBlocks);
}

// Where a multiprocessor gets few thread blocks, each has more blocks of slots on their way.
void LaunchAttendDecode(DeviceContext& context, const AttendArgs& args, uint32_t grid) {
  constexpr size_t kReserved = 1024;  // shared memory that a thread block takes besides its own
  const DecodeKernel kernel =
      SelectDecodeKernel(args.blocks.dtype, args.blocks.shape.head_dim, args.value_stride);
  const auto multiprocessors = static_cast<uint32_t>(context.cuda().n_multiprocessors);
  const size_t each =
      std::min<size_t>(kWantedBlocks, (grid + multiprocessors - 1) / multiprocessors);
  AttendArgs staged = args;
  staged.n_stages = kMinStages;
  while (staged.n_stages < kMaxStages &&
         (kernel.shared_bytes(staged.n_stages + 1) + kReserved) * each <=
             context.cuda().max_shared_bytes + kReserved) {
    ++staged.n_stages;
  }
  LaunchEarly(context, kernel.run, grid, kBlockThreads, kernel.shared_bytes(staged.n_stages),
              staged);
}

}  // namespace ovq::kernels::cuda
