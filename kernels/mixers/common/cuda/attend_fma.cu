#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/common/cuda/attend_fma.cuh"
#include "kernels/mixers/common/cuda/attend_launch.h"

namespace ovq::kernels::cuda {
namespace {

constexpr int kWarps = kFmaThreads / 32;

// The row that a warp processes; equal in all lanes.
struct WarpRow {
  float max = kLowestScore, sum = 0;
  float folded_max = kLowestScore, folded_sum = 0;
  Best best = NoBest();
};

struct FmaShared {
  SharedPtr<float> rows, weights, scale, acc, folded;
};

// The slots l and l + 32 of lane l.
struct LaneSlots {
  float bias[2], value_scale[2];
};

// Turns a query's 64 scores into weights times the scales of their values. Returns the sum of the
// weights: a lane adds those of its two slots, then lanes 16, 8, 4, 2 and 1 apart are added.
__device__ inline void Softmax(SharedPtr<float> scores, const LaneSlots& slots, int lo, int hi,
                               WarpRow& row, float& scale) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float score[2];
  bool open[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int slot = lane + 32 * j;
    const float plain = scores[slot];
    open[j] = slot >= lo && slot < hi;
    score[j] = open[j] ? plain + slots.bias[j] : kLowestScore;
  }
  float new_max = fmaxf(row.max, fmaxf(score[0], score[1]));
  for (int apart = 16; apart > 0; apart /= 2) {
    new_max = fmaxf(new_max, __shfl_xor_sync(kWholeWarp, new_max, apart));
  }
  float weight[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    weight[j] = open[j] ? expf(score[j] - new_max) : 0.0f;
    scores[lane + 32 * j] = weight[j] * slots.value_scale[j];
  }
  float sum = weight[0] + weight[1];
  for (int apart = 16; apart > 0; apart /= 2) {
    sum += __shfl_xor_sync(kWholeWarp, sum, apart);
  }
  scale = expf(row.max - new_max);
  row.sum = fmaf(row.sum, scale, sum);
  row.max = new_max;
}

__device__ inline void Probe(SharedPtr<const float> scores, int live, int first_slot,
                             WarpRow& row) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Best best = row.best;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int slot = lane + 32 * j;
    const float score = scores[slot];
    if (slot < live && score > best.score) best = {score, first_slot + slot};
  }
  for (int apart = 16; apart > 0; apart /= 2) best = BetterSlotOfLanes(best, apart);
  row.best = best;
}

// Turns scores of a block into weights, updates the scale of the output so far and the best slots;
// one row per warp.
template <int kRows>
__device__ inline void WeighBlock(const AttendArgs& args, const Tile& tile, int i,
                                  const FmaShared& shared, const LaneSlots& slots,
                                  WarpRow (&rows)[kRows / kWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const BlockView block = BlockAt(args, tile, i);
#pragma unroll
  for (int j = 0; j < kRows / kWarps; ++j) {
    const int r = warp + j * kWarps;
    if (r < tile.n_queries) {
      int lo, hi;
      float scale;
      OpenSlots(block, args.blocks.window, tile.slot + tile.token(args, r), lo, hi);
      Softmax(shared.weights + r * kBlockSlots, slots, lo, hi, rows[j], scale);
      if (lane == 0) shared.scale[r] = scale;
    } else if (r < tile.n_rows && block.live >= 0) {
      Probe(shared.weights + r * kBlockSlots, block.live, i * kBlockSlots, rows[j]);
    }
  }
}

// Adds one slice of values, slots [slot, slot + n), for all queries; the first slice scales the
// output.
template <int kRows, class T>
__device__ inline void AddSlice(const AttendArgs& args, const Tile& tile, const FmaShared& shared,
                                SharedPtr<const T> values, int slot, int n) {
  constexpr int kHalf = kRows / 2;
  for (int i = static_cast<int>(threadIdx.x); i < 2 * args.value_stride; i += kFmaThreads) {
    const int first = i < args.value_stride ? 0 : kHalf;
    const int c = i < args.value_stride ? i : i - args.value_stride;
    if (first >= tile.n_queries) break;
    const SharedPtr<float> at = shared.acc + (first * args.value_stride + c);
    float acc[kHalf];
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      acc[k] = at[k * args.value_stride];
      if (slot == 0) acc[k] *= shared.scale[first + k];
    }
    AddValues<kHalf, T>(shared.weights + (first * kBlockSlots + slot), values + c,
                        args.value_stride, n, acc);
#pragma unroll
    for (int k = 0; k < kHalf; ++k) at[k * args.value_stride] = acc[k];
  }
}

// Ends a segment: writes its part to memory, or folds it. A thread's channels are those of
// AddSlice.
template <int kRows>
__device__ inline void EndSegment(const AttendArgs& args, const Tile& tile, const FmaShared& shared,
                                  WarpRow (&rows)[kRows / kWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int segment = tile.begin_block / kCudaSegmentBlocks;
#pragma unroll
  for (int j = 0; j < kRows / kWarps; ++j) {
    const int r = warp + j * kWarps;
    if (r >= tile.n_queries) break;
    if (tile.split) {
      float* part = PartialRow(args, tile, segment, r);
      if (lane == 0) part[0] = rows[j].max;
      if (lane == 0) part[1] = rows[j].sum;
      continue;
    }
    const FoldFactors factors =
        Fold<false>(rows[j].max, rows[j].sum, rows[j].folded_max, rows[j].folded_sum);
    rows[j].max = kLowestScore;
    rows[j].sum = 0;
    if (lane == 0) shared.scale[kRows + r] = factors.keep;
    if (lane == 0) shared.scale[2 * kRows + r] = factors.add;
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < 2 * args.value_stride; i += kFmaThreads) {
    const int first = i < args.value_stride ? 0 : kRows / 2;
    const int c = i < args.value_stride ? i : i - args.value_stride;
    for (int r = first; r < first + kRows / 2 && r < tile.n_queries; ++r) {
      const int at = r * args.value_stride + c;
      const float value = shared.acc[at];
      if (tile.split) {
        PartialRow(args, tile, segment, r)[kPartialHeader + c] = value;
        continue;
      }
      const FoldFactors factors = {shared.scale[kRows + r], shared.scale[2 * kRows + r]};
      shared.folded[at] = FoldValue(factors, shared.folded[at], value);
      shared.acc[at] = 0;
    }
  }
}

template <int kRows>
__device__ inline void Finish(const AttendArgs& args, const Tile& tile, const FmaShared& shared,
                              const WarpRow (&rows)[kRows / kWarps]) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kRows / kWarps; ++j) {
    const int r = warp + j * kWarps;
    if (lane != 0 || r >= tile.n_rows) break;
    if (r < tile.n_queries) {
      shared.scale[r] = rows[j].folded_sum;
    } else if (tile.split) {
      WritePartialBest(args, tile, r, rows[j].best);
    } else {
      WriteBest(args, tile, r, rows[j].best);
    }
  }
  if (tile.split) {
    if (IsLastOfTile(args, tile)) FoldPartials<false>(args, tile);
    return;
  }
  __syncthreads();
  const int pairs = args.value_stride / 2;
  for (int i = static_cast<int>(threadIdx.x); i < tile.n_queries * pairs; i += kFmaThreads) {
    const int r = i / pairs;
    const float sum = shared.scale[r], x = shared.folded[2 * i], y = shared.folded[2 * i + 1];
    WriteOut(args, OutRow(args, tile, r), i % pairs * 2, x / sum, y / sum);
  }
}

// Softmax attention over dictionary and recent blocks (OVQ paper eq. 15); the same pass finds the
// keys' nearest centroids:
//   out = sum_j w_j v_j / sum_j w_j,  w_j = e^(q . k_j + ln count_j - max)
// Precision: float32; as on the CPU, a score is one chain of fused multiply-adds over the channels,
// and an output channel is one over the 64 slots of a block. Launch: 128 threads per tile of kRows
// rows and segment (or all segments, if they are not split). Scores: a thread has one slot and half
// the rows; weights: a warp has a row; outputs: a thread has a channel and half the rows. Bytes:
// every block of the rows' state once per tile.
template <int kRows, class T>
__global__ void __launch_bounds__(kFmaThreads, kRows == 4 ? 4 : 2)
    AttendFmaKernel(const __grid_constant__ AttendArgs args) {
  AllowNextKernel();
  Tile tile;
  const bool any = FindTile(args, tile);
  WaitForKernelsBefore();
  if (!any) return;
  constexpr int kHalf = kRows / 2;
  const int head_dim = args.blocks.shape.head_dim, row_stride = RoundUp4(head_dim);
  const int thread = static_cast<int>(threadIdx.x), slot = thread % kBlockSlots;
  const int first_row = thread / kBlockSlots * kHalf;
  const FmaLayout at = MakeFmaLayout(head_dim, args.value_stride, kRows);
  const FmaShared shared = {DynamicShared<float>(at.rows), DynamicShared<float>(at.weights),
                            DynamicShared<float>(at.scale), DynamicShared<float>(at.acc),
                            DynamicShared<float>(at.folded)};
  const Slices slices = CountSlices<T>(args, tile.n_queries > 0);
  SliceStream<T> stream(args, tile, slices);
  for (int r = 0; r < kRows; ++r) {
    const float* row = r < tile.n_rows ? RowData(args, tile, r) : nullptr;
    for (int c = thread; c < head_dim; c += kFmaThreads) {
      shared.rows[r * row_stride + c] = row == nullptr ? 0.0f : row[c];
    }
  }
  for (int i = thread; i < kRows * args.value_stride; i += kFmaThreads) {
    shared.acc[i] = shared.folded[i] = 0;
  }
  if (thread < 3 * kRows) shared.scale[thread] = 0;
  __syncthreads();
  WarpRow rows[kRows / kWarps];
  for (int i = tile.begin_block; i < tile.end_block; ++i) {
    const BlockView block = BlockAt(args, tile, i);
    // Scores and weights, which are fewer, are multiplied by the scales instead of the channels.
    const T *block_keys = reinterpret_cast<const T*>(block.keys),
            *block_values = reinterpret_cast<const T*>(block.values);
    const float key_scale = KeyRow(block_keys, head_dim, slot).scale();
    LaneSlots slots;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int of_lane = thread % 32 + 32 * j;
      slots.bias[j] = block.bias == nullptr ? 0 : block.bias[of_lane];
      slots.value_scale[j] = ValueRow(block_values, args.value_stride, of_lane).scale();
    }
    float scores[kHalf] = {};
    for (int p = 0; p < slices.of_keys; ++p) {
      const int c = p * slices.channels;
      const SharedPtr<const T> keys = stream.Next();
      AddScores<kHalf, T>(shared.rows + (first_row * row_stride + c), row_stride, keys + slot,
                          head_dim - c < slices.channels ? head_dim - c : slices.channels, scores);
    }
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      shared.weights[(first_row + k) * kBlockSlots + slot] = scores[k] * key_scale;
    }
    __syncthreads();
    WeighBlock<kRows>(args, tile, i, shared, slots, rows);
    for (int p = 0; p < slices.of_values; ++p) {
      const int s = p * slices.slots;
      const SharedPtr<const T> values = stream.Next();
      AddSlice<kRows, T>(args, tile, shared, values, s,
                         kBlockSlots - s < slices.slots ? kBlockSlots - s : slices.slots);
    }
    if (tile.n_queries > 0 && ((i + 1) % kCudaSegmentBlocks == 0 || i + 1 == tile.n_blocks)) {
      EndSegment<kRows>(args, tile, shared, rows);
    }
  }
  WaitCopies<0>();
  Finish<kRows>(args, tile, shared, rows);
}

template <class T>
auto SelectFmaKernel(int n_rows) {
  return n_rows == 4 ? AttendFmaKernel<4, T> : AttendFmaKernel<16, T>;
}

}  // namespace

size_t AttendFmaShared(int head_dim, int value_stride, int n_rows) {
  return static_cast<size_t>(MakeFmaLayout(head_dim, value_stride, n_rows).end);
}

void LaunchAttendFma(DeviceContext& context, const AttendArgs& args, uint32_t grid, int n_rows) {
  const size_t shared = AttendFmaShared(args.blocks.shape.head_dim, args.value_stride, n_rows);
  const auto kernel =
      VisitSlots(args.blocks.dtype, [=]<class T>(Slots<T>) { return SelectFmaKernel<T>(n_rows); });
  LaunchEarly(context, kernel, grid, kFmaThreads, shared, args);
}

}  // namespace ovq::kernels::cuda
