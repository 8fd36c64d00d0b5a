// KeyDiff on CUDA: the equations, the order of the sums and so the bits of key_diff_cpu.cc. A
// thread block evicts for one head after another whose chunk ends.
#include <algorithm>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/key_diff/key_diff.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kHeld = 8;  // elements that a thread moves at once
constexpr uint32_t kWholeWarp = 0xffffffffu;

struct EvictionArgs {
  AttentionBlocks blocks;
  PairRule rule;
  DeviceWave wave;
  int32_t n_seqs;
  int32_t most_rows;  // rows of a thread block's part of the arrays below
  float* inverse_norm;
  uint32_t* rank;  // orders rows as their scores do; 0: a spared one
  int32_t* kept;   // row that becomes each slot
};

// Unsigned integers that have the order of scores; NaN is as large as infinity.
__device__ uint32_t OrderedBits(float score) {
  const float x = score == score ? score + 0.0f : INFINITY;  // one zero
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

template <class T>
struct Eviction {
  KeyDiffRows rows;
  float* inverse_norm;
  uint32_t* rank;
  int32_t* kept;
  SharedPtr<float> sums;      // [head_dim] a
  SharedPtr<int32_t> counts;  // [kWarps]

  // Sum over the thread block's threads, and over those before this one.
  __device__ int32_t Sum(int32_t mine, int32_t& before) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int32_t up_to = mine;
    for (int32_t apart = 1; apart < 32; apart *= 2) {
      const int32_t other = __shfl_up_sync(kWholeWarp, up_to, apart);
      if (lane >= apart) up_to += other;
    }
    __syncthreads();
    if (lane == 31) counts[warp] = up_to;
    __syncthreads();
    int32_t sum = 0;
    before = up_to - mine;
    for (int32_t w = 0; w < kWarps; ++w) {
      const int32_t of_warp = counts[w];
      if (w < warp) before += of_warp;
      sum += of_warp;
    }
    return sum;
  }

  __device__ const T* Key(int32_t row) const {
    return rows.Keys<const T>(row) + rows.Index(row) % kBlockSlots;
  }

  __device__ void Score() const {
    const int d = rows.blocks.shape.head_dim, n = rows.size();
    for (int32_t row = threadIdx.x; row < n; row += kThreads) {
      const T* key = Key(row);
      float squares = 0;
      for (int c = 0; c < d; ++c) {
        const float x = ToFloat(key[c * kBlockSlots]);
        squares += x * x;
      }
      inverse_norm[row] = 1 / fmaxf(sqrtf(squares), kSmallestNorm);
    }
    __syncthreads();
    for (int c = threadIdx.x / 32; c < d; c += kWarps) SumChannel(c);
    __syncthreads();
    for (int32_t row = threadIdx.x; row < n; row += kThreads) {
      const T* key = Key(row);
      float product = 0;
      for (int c = 0; c < d; ++c) {
        const float sum = sums[c];
        product += sum * ToFloat(key[c * kBlockSlots]);
      }
      rank[row] = rows.IsSpared(row) ? 0 : OrderedBits(product * inverse_norm[row]);
    }
    __syncthreads();
  }
  // One channel of a, by a warp: each of a block's 64 lanes over the blocks, then over the lanes.
  __device__ void SumChannel(int c) const {
    const int32_t lane = threadIdx.x % 32;
    float of_lane[2] = {};
    for (int32_t row = 0; row < rows.size(); row += rows.Run(row)) {
      const T* keys = rows.Keys<const T>(row) + c * kBlockSlots;
      const int32_t n = rows.Run(row);
      for (int i = 0; i < 2; ++i) {
        const int32_t s = lane + 32 * i;
        if (s < n) of_lane[i] += ToFloat(keys[s]) * inverse_norm[row + s];
      }
    }
    float sum = 0;
    for (const float of_half : of_lane) {
      for (int from = 0; from < 32; ++from) sum += __shfl_sync(kWholeWarp, of_half, from);
    }
    if (lane == 0) sums[c] = sum;
  }

  __device__ int32_t CountBelow(uint32_t limit) const {
    int32_t mine = 0, before;
    for (int32_t row = threadIdx.x; row < rows.size(); row += kThreads) mine += rank[row] < limit;
    return Sum(mine, before);
  }

  // Fills `kept`: the rows of lower rank than that of the n_next-th lowest, and the first of that
  // rank, in ascending order.
  __device__ void Choose() const {
    const int32_t n = rows.size(), n_kept = rows.chunk.n_next;
    uint32_t limit = 0;
    for (int bit = 31; bit >= 0; --bit) {
      const uint32_t higher = limit | 1u << bit;
      if (CountBelow(higher) < n_kept) limit = higher;
    }
    int32_t left = n_kept - CountBelow(limit), slot = 0;
    for (int32_t begin = 0; begin < n; begin += kThreads) {
      const int32_t row = begin + static_cast<int32_t>(threadIdx.x);
      const uint32_t mine = row < n ? rank[row] : 0xffffffffu;
      int32_t ties_before, before;
      const bool ties = row < n && mine == limit;
      const int32_t n_ties = Sum(ties, ties_before);
      const bool stays = row < n && (mine < limit || (ties && ties_before < left));
      const int32_t n_stay = Sum(stays, before);
      if (stays) kept[slot + before] = row;
      left -= n_ties;
      slot += n_stay;
    }
  }

  // Moves keys or values, with their exponents as one channel more. Rows move down or stay: of what
  // is written, all has moved or is in a thread's hands.
  template <bool kValue>
  __device__ void Move(int32_t first_block) const {
    const AttentionShape& shape = rows.blocks.shape;
    const int stride = ValueStride(shape.value_head_dim);
    const int64_t channels = (kValue ? stride : shape.head_dim) + (Slots<T>::kScaled ? 1 : 0),
                  in_block = channels * kBlockSlots, end = NumBlocks(rows.chunk.n_next) * in_block;
    const auto element = [&](T* block, int32_t s, int64_t c) -> T& {
      if (!kValue || c == stride) return block[c * kBlockSlots + s];
      return block[s * stride + c];
    };
    for (int64_t begin = first_block * in_block; begin < end; begin += kThreads * kHeld) {
      T held[kHeld];
      const auto visit = [&](auto&& fn) {
        for (int h = 0; h < kHeld; ++h) {
          const int64_t item = begin + h * kThreads + threadIdx.x, in = item % in_block,
                        s = kValue ? in / channels : in % kBlockSlots,
                        c = kValue ? in % channels : in / kBlockSlots,
                        slot = item / in_block * kBlockSlots + s;
          if (item < end && slot < rows.chunk.n_next) fn(held[h], static_cast<int32_t>(slot), c);
        }
      };
      visit([&](T& x, int32_t slot, int64_t c) {
        const int32_t row = kept[slot];
        x = element(kValue ? rows.Values<T>(row) : rows.Keys<T>(row), rows.Index(row) % kBlockSlots,
                    c);
      });
      __syncthreads();
      visit([&](T& x, int32_t slot, int64_t c) {
        element(kValue ? rows.SlotValues<T>(slot) : rows.SlotKeys<T>(slot), slot % kBlockSlots, c) =
            x;
      });
      __syncthreads();
    }
  }

  __device__ void EndChunk() const {
    const bool evicts = rows.size() > rows.chunk.n_next;
    if (evicts) {
      Score();
      Choose();
    } else {
      for (int32_t row = threadIdx.x; row < rows.size(); row += kThreads) kept[row] = row;
    }
    __syncthreads();
    const int32_t first = evicts ? 0 : rows.chunk.n_old / kBlockSlots;
    Move<false>(first);
    Move<true>(first);
  }
};

// Shared memory: a, then counts.
template <class T>
__global__ void __launch_bounds__(kThreads) Evict(const __grid_constant__ EvictionArgs args) {
  const int heads = args.blocks.shape.n_kv_heads;
  const int64_t part = int64_t{blockIdx.x} * args.most_rows;
  for (auto i = static_cast<int32_t>(blockIdx.x); i < args.n_seqs * heads;
       i += static_cast<int32_t>(gridDim.x)) {
    FullChunk chunk;
    if (!FindFullChunk(args.blocks, args.wave, i / heads, i % heads, chunk)) continue;
    const auto d = static_cast<uint32_t>(args.blocks.shape.head_dim);
    Eviction<T>{{args.blocks, chunk, args.rule},
                args.inverse_norm + part,
                args.rank + part,
                args.kept + part,
                DynamicShared<float>(0),
                DynamicShared<int32_t>(4 * d)}
        .EndChunk();
    __syncthreads();
  }
}

}  // namespace
}  // namespace cuda

void KeyDiffCuda(DeviceContext& context, const KeyDiffArgs& args) {
  ScratchScope scope(context);
  const AttentionBlocks& blocks = args.blocks;
  const int n_seqs = args.seqs.n_seqs(),
            grid = std::min(n_seqs * blocks.shape.n_kv_heads, context.cuda().n_multiprocessors),
            most_rows = blocks.live.bound + blocks.wave_span;
  const size_t n = static_cast<size_t>(grid) * static_cast<size_t>(most_rows),
               shared = (static_cast<size_t>(blocks.shape.head_dim) + cuda::kWarps) * 4;
  cuda::EvictionArgs eviction = {.blocks = blocks,
                                 .rule = args.rule,
                                 .wave = {},
                                 .n_seqs = n_seqs,
                                 .most_rows = most_rows,
                                 .inverse_norm = scope.Allocate<float>(n),
                                 .rank = scope.Allocate<uint32_t>(n),
                                 .kept = scope.Allocate<int32_t>(n)};
  const auto evict = VisitSlots(blocks.dtype, []<class T>(Slots<T>) { return cuda::Evict<T>; });
  AttendWavesCuda(context, args, {}, [&](const DeviceWave& wave) {
    eviction.wave = wave;
    cuda::Launch(context, evict, grid, cuda::kThreads, shared, eviction);
  });
}

}  // namespace ovq::kernels
