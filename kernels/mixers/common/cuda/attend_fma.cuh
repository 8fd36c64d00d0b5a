// Shared memory of the float32 kernel: its layout, the stream of slices in which blocks arrive, and
// the two inner products over a slice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/slots.h"

namespace ovq::kernels::cuda {

inline constexpr int kFmaThreads = 128;
inline constexpr int kStages = 3;
inline constexpr int kStageBytes = 16 * 1024;

__host__ __device__ constexpr int RoundUp4(int n) { return (n + 3) / 4 * 4; }

// Offsets in shared memory, in bytes; parts are floats except for the stages.
struct FmaLayout {
  int stages;   // [kStages][kStageBytes]
  int rows;     // [n_rows][RoundUp4(head_dim)]
  int weights;  // [n_rows][64] scores, then weights
  int scale;    // [n_rows] of the output so far, then two times [n_rows] for the fold
  int acc;      // [n_rows][value_stride] of this segment
  int folded;   // of the finished segments
  int end;
};
__host__ __device__ constexpr FmaLayout MakeFmaLayout(int head_dim, int value_stride, int n_rows) {
  constexpr int kFloat = sizeof(float);
  FmaLayout at = {};
  at.rows = kStages * kStageBytes;
  at.weights = at.rows + n_rows * RoundUp4(head_dim) * kFloat;
  at.scale = at.weights + n_rows * kBlockSlots * kFloat;
  at.acc = at.scale + RoundUp4(3 * n_rows) * kFloat;
  at.folded = at.acc + n_rows * value_stride * kFloat;
  at.end = at.folded + n_rows * value_stride * kFloat;
  return at;
}

// A block passes through shared memory in slices of at most one stage: first its keys, some
// channels at a time, then its values, some slots at a time. Both come in whole groups of four,
// except for the last channels.
struct Slices {
  int channels, slots;  // channels and slots of a slice
  int of_keys, of_values;
};
template <class T>
__device__ inline Slices CountSlices(const AttendArgs& args, bool values_too) {
  Slices slices;
  constexpr int kChannels = kStageBytes / (kBlockSlots * static_cast<int>(sizeof(T)));
  const int slots = kStageBytes / (args.value_stride * static_cast<int>(sizeof(T))) / 4 * 4;
  slices.channels = kChannels;
  slices.slots = slots < kBlockSlots ? slots : kBlockSlots;
  slices.of_keys = (args.blocks.shape.head_dim + kChannels - 1) / kChannels;
  slices.of_values = values_too ? (kBlockSlots + slices.slots - 1) / slices.slots : 0;
  return slices;
}

// The slices of the thread block's blocks, one after another; kStages - 1 of them are loading.
template <class T>
class SliceStream {
 public:
  __device__ SliceStream(const AttendArgs& args, const Tile& tile, const Slices& slices)
      : args_(args), tile_(tile), slices_(slices), block_(tile.begin_block) {
    for (int i = 0; i < kStages - 1; ++i) CopyNext();
  }

  // Returns the next slice after all threads have finished with the previous one.
  __device__ SharedPtr<const T> Next() {
    WaitCopies<kStages - 2>();
    __syncthreads();
    CopyNext();
    const uint32_t stage = consumed_++ % kStages;
    return DynamicShared<const T>(stage * kStageBytes);
  }

 private:
  __device__ void CopyNext() {
    if (block_ < tile_.end_block) {
      const BlockView block = BlockAt(args_, tile_, block_);
      const bool is_keys = slice_ < slices_.of_keys;
      const int place = is_keys ? slice_ : slice_ - slices_.of_keys;
      const int each = is_keys ? slices_.channels : slices_.slots;
      const int all = is_keys ? args_.blocks.shape.head_dim : kBlockSlots;
      const int row_bytes =
          (is_keys ? kBlockSlots : args_.value_stride) * static_cast<int>(sizeof(T));
      const std::byte* from = (is_keys ? block.keys : block.values) + place * each * row_bytes;
      const int n = (all - place * each < each ? all - place * each : each) * row_bytes / 16;
      const SharedPtr<uint4> to = DynamicShared<uint4>(copied_ % kStages * kStageBytes);
      for (int i = static_cast<int>(threadIdx.x); i < n; i += kFmaThreads) {
        CopyAsync16(to + i, from + i * 16, true);
      }
      if (++slice_ == slices_.of_keys + slices_.of_values) {
        slice_ = 0;
        ++block_;
      }
    }
    CommitCopies();
    ++copied_;
  }

  const AttendArgs& args_;
  const Tile& tile_;
  const Slices& slices_;
  int block_, slice_ = 0;  // next to copy
  uint32_t copied_ = 0, consumed_ = 0;
};

// scores[k] += rows[k] . keys over n channels, one fused multiply-add after another.
template <int kHalf, class T>
__device__ inline void AddScores(SharedPtr<const float> rows, int row_stride,
                                 SharedPtr<const T> keys, int n, float (&scores)[kHalf]) {
  int c = 0;
  for (; c + 4 <= n; c += 4) {
    float key[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const T element = keys[(c + j) * kBlockSlots];
      key[j] = ToFloat(element);
    }
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const float4 x = SharedCast<const float4>(rows + (k * row_stride + c))[0];
      scores[k] = fmaf(x.x, key[0], scores[k]);
      scores[k] = fmaf(x.y, key[1], scores[k]);
      scores[k] = fmaf(x.z, key[2], scores[k]);
      scores[k] = fmaf(x.w, key[3], scores[k]);
    }
  }
  for (; c < n; ++c) {
    const T element = keys[c * kBlockSlots];
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const float x = rows[k * row_stride + c];
      scores[k] = fmaf(x, ToFloat(element), scores[k]);
    }
  }
}

// acc[k] += weights[k] . values over n slots, one fused multiply-add after another.
template <int kHalf, class T>
__device__ inline void AddValues(SharedPtr<const float> weights, SharedPtr<const T> values,
                                 int value_stride, int n, float (&acc)[kHalf]) {
  for (int s = 0; s < n; s += 4) {
    float value[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const T element = values[(s + j) * value_stride];
      value[j] = ToFloat(element);
    }
#pragma unroll
    for (int k = 0; k < kHalf; ++k) {
      const float4 w = SharedCast<const float4>(weights + (k * kBlockSlots + s))[0];
      acc[k] = fmaf(w.x, value[0], acc[k]);
      acc[k] = fmaf(w.y, value[1], acc[k]);
      acc[k] = fmaf(w.z, value[2], acc[k]);
      acc[k] = fmaf(w.w, value[3], acc[k]);
    }
  }
}

}  // namespace ovq::kernels::cuda
