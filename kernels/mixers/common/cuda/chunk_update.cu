// The update of the dictionaries whose chunk is full (chunk_update.h): one thread block per head of
// a session. Selection, order of the sums and rounding are those of the CPU, so equal keys and
// scores give equal bytes.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kMinThreads = 64;
constexpr int kMaxThreads = 512;
constexpr int kGroupsPerThread = 4;  // groups of kRoundingGroup channels
constexpr size_t kSharedBytesPerKey = 12;
// For types with scales: kRowLanes lanes of a warp share the groups of one row, and a warp has
// adjacent rows.
constexpr int kRowLanes = 4, kWarpRows = 32 / kRowLanes;

// The layout of keys or of values, in the pending chunk and in the dictionary alike: channel c of
// slot i of a block is element i * slot_stride + c * channel_stride.
struct RowPlaces {
  StatePlace pending;
  StatePlace dictionary;
  int32_t slot_stride;
  int32_t channel_stride;
  int32_t n_channels;
  int32_t block_channels;  // n_channels with padding
  bool is_value;
  bool from_mean;  // adds the rows' distances from the mean, not the rows
  bool normalizes;

  constexpr int32_t groups() const { return (n_channels + kRoundingGroup - 1) / kRoundingGroup; }
  template <class T>
  constexpr SlotRow<T> Row(const StatePlace& place, const FullChunk& head, int32_t i) const {
    T* block = place.At<T>(head.session, head.kv_head, i / kBlockSlots);
    return {block + static_cast<int64_t>(i % kBlockSlots) * slot_stride, channel_stride,
            block + kBlockSlots * block_channels + i % kBlockSlots};
  }
};

struct UpdateArgs {
  AttentionBlocks blocks;
  DeviceWave wave;
  RowPlaces keys, values;
};

// One element per key of the chunk, in shared memory.
struct KeyArrays {
  SharedPtr<float> score;   // score that decides which keys become centroids
  SharedPtr<int32_t> slot;  // the key's centroid
  SharedPtr<int32_t> next;  // the next key of that centroid, or -1
  SharedPtr<float>
      divisor;  // shares score's memory: count of the centroid, 0 except for its first key
};

__device__ KeyArrays Arrays(int32_t chunk_len) {
  const auto bytes = static_cast<uint32_t>(chunk_len) * 4;
  return {.score = DynamicShared<float>(0),
          .slot = DynamicShared<int32_t>(bytes),
          .next = DynamicShared<int32_t>(2 * bytes),
          .divisor = DynamicShared<float>(0)};
}

// Dot product of the chunk's keys 0 and i, one chain over the channels.
template <class T>
__device__ float ScoreWithFirst(const RowPlaces& keys, const FullChunk& head, int32_t i) {
  const SlotRow<T> first = keys.Row<T>(keys.pending, head, 0),
                   key = keys.Row<T>(keys.pending, head, i);
  const float scale = first.scale();
  float sum = 0;
  for (int32_t c = 0; c < keys.n_channels; ++c) {
    const int32_t at = c * keys.channel_stride;
    sum = fmaf(ToFloat(first.data[at]) * scale, ToFloat(key.data[at]), sum);
  }
  return sum * key.scale();
}

template <class T>
__device__ void Score(const UpdateArgs& args, const FullChunk& head, const KeyArrays& of_key) {
  const float* best = args.blocks.best_score.At<float>(head.session, head.kv_head);
  for (int32_t i = threadIdx.x; i < args.blocks.wave_span; i += blockDim.x) {
    const float score = head.n_old == 0 ? ScoreWithFirst<T>(args.keys, head, i) : best[i];
    // NaN, which only broken weights cause, comes last.
    of_key.score[i] = score != score ? INFINITY : score;
  }
}

// AssignChunk of chunk_update.h, by counting the keys that come before each one.
__device__ void Assign(const UpdateArgs& args, const FullChunk& head, const KeyArrays& of_key) {
  const bool first_chunk = head.n_old == 0;
  const int32_t first_key = first_chunk ? 1 : 0;
  const int32_t first_new = first_chunk ? 1 : head.n_old;
  const int32_t n_new = head.n_next - first_new;
  const int32_t* best = args.blocks.best_slot.At<int32_t>(head.session, head.kv_head);
  for (int32_t i = threadIdx.x; i < args.blocks.wave_span; i += blockDim.x) {
    int32_t target = first_chunk ? 0 : best[i];
    if (n_new > 0 && i >= first_key) {
      const float mine = of_key.score[i];
      int32_t rank = 0;
      for (int32_t j = first_key; j < args.blocks.wave_span; ++j) {
        const float other = of_key.score[j];
        rank += other < mine || (other == mine && j < i) ? 1 : 0;
      }
      if (rank < n_new) target = first_new + rank;
    }
    of_key.slot[i] = target;
  }
}

// The number of keys of key i's centroid if i is the lowest of them, else 0; sets next[i].
__device__ int32_t LinkMembers(const KeyArrays& of_key, int32_t n, int32_t i) {
  const int32_t mine = of_key.slot[i];
  int32_t after = -1, members = 1;
  for (int32_t j = n - 1; j > i; --j) {
    const int32_t other = of_key.slot[j];
    if (other != mine) continue;
    after = j;
    ++members;
  }
  of_key.next[i] = after;
  for (int32_t j = 0; j < i; ++j) {
    const int32_t other = of_key.slot[j];
    if (other == mine) return 0;
  }
  return members;
}

__device__ void Count(const UpdateArgs& args, const FullChunk& head, const KeyArrays& of_key) {
  const AttentionBlocks& blocks = args.blocks;
  for (int32_t i = threadIdx.x; i < blocks.wave_span; i += blockDim.x) {
    const int32_t members = LinkMembers(of_key, blocks.wave_span, i);
    float divisor = 0;
    if (members > 0) {
      const int32_t centroid = of_key.slot[i];
      const int32_t block = centroid / kBlockSlots, slot = centroid % kBlockSlots;
      uint32_t* count = blocks.counts.At<uint32_t>(head.session, head.kv_head, block) + slot;
      const uint64_t sum = uint64_t{*count} + static_cast<uint32_t>(members);
      *count = sum < 0xffffffffu ? static_cast<uint32_t>(sum) : 0xffffffffu;
      divisor = static_cast<float>(*count);
      blocks.log_counts.At<float>(head.session, head.kv_head, block)[slot] = logf(divisor);
    }
    of_key.divisor[i] = divisor;
  }
}

// Computes some channels of the mean of the centroid whose lowest key is `first`: mean += sum_i
// (k_i - mean) / count over its keys in ascending order. A new centroid's mean starts at zero.
// kPlain: rows are from_mean, as in the paper.
template <class T, bool kPlain>
__device__ void GroupMean(const RowPlaces& rows, const FullChunk& head, const KeyArrays& of_key,
                          int32_t first, int32_t channel, float (&sum)[kRoundingGroup]) {
  const float divisor = of_key.divisor[first];
  const int32_t centroid = of_key.slot[first];
  const int32_t n = rows.n_channels - channel;
  const int64_t at = static_cast<int64_t>(channel) * rows.channel_stride;
  const SlotRow<T> mean = rows.Row<T>(rows.dictionary, head, centroid);
  const T* row = mean.data + at;
  const float scale = mean.scale();
  float old[kRoundingGroup], base[kRoundingGroup];
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) {
    old[c] = c < n ? ToFloat(row[c * rows.channel_stride]) * scale : 0;
    base[c] = kPlain || rows.from_mean ? old[c] : 0;
    sum[c] = 0;
  }
  for (int32_t key = first; key >= 0;) {
    const SlotRow<T> pending = rows.Row<T>(rows.pending, head, key);
    const T* member = pending.data + at;
    const float of_member = pending.scale();
#pragma unroll
    for (int c = 0; c < kRoundingGroup; ++c) {
      if (c < n) sum[c] += ToFloat(member[c * rows.channel_stride]) * of_member - base[c];
    }
    const int32_t next = of_key.next[key];
    key = next;
  }
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) sum[c] = old[c] + sum[c] / divisor;
}

// exponent: the whole mean's.
template <class T>
__device__ void StoreGroup(const RowPlaces& rows, const FullChunk& head, int32_t layer,
                           int32_t centroid, int32_t channel, const float (&mean)[kRoundingGroup],
                           uint8_t exponent) {
  T* row = rows.Row<T>(rows.dictionary, head, centroid).data +
           static_cast<int64_t>(channel) * rows.channel_stride;
  const RoundingKey key = {.layer = static_cast<uint32_t>(layer),
                           .kv_head = static_cast<uint32_t>(head.kv_head),
                           .row = static_cast<uint32_t>(centroid),
                           .is_value = rows.is_value,
                           .chunk = head.chunk};
  RoundGroup(mean, rows.n_channels - channel, key, static_cast<uint32_t>(channel),
             InverseExponentScale(exponent), row, static_cast<size_t>(rows.channel_stride));
}

template <class T, bool kPlain>
__device__ void MergeGroup(const RowPlaces& rows, const FullChunk& head, int32_t layer,
                           const KeyArrays& of_key, int32_t first, int32_t group) {
  const float divisor = of_key.divisor[first];
  if (divisor == 0) return;
  const int32_t centroid = of_key.slot[first];
  float mean[kRoundingGroup];
  GroupMean<T, kPlain>(rows, head, of_key, first, group * kRoundingGroup, mean);
  StoreGroup<T>(rows, head, layer, centroid, group * kRoundingGroup, mean, kUnitExponent);
}

// Updates rows with scales, whose channels all depend on the largest. A mean is computed twice,
// because no thread can keep it.
template <class T, bool kPlain>
__device__ void MergeScaled(const RowPlaces& rows, const FullChunk& head, int32_t layer,
                            const KeyArrays& of_key, int32_t n_keys) {
  const int32_t thread = threadIdx.x, lane = thread % 32,
                channel = lane / kWarpRows * kRoundingGroup, step = kRowLanes * kRoundingGroup;
  const int32_t warp_step = static_cast<int32_t>(blockDim.x) / kRowLanes;
  for (int32_t begin = thread / 32 * kWarpRows; begin < n_keys; begin += warp_step) {
    const int32_t first = begin + lane % kWarpRows;
    float divisor = 0, mean[kRoundingGroup];
    if (first < n_keys) divisor = of_key.divisor[first];
    uint32_t largest = 0;
    for (int32_t c = channel; divisor > 0 && c < rows.n_channels; c += step) {
      GroupMean<T, kPlain>(rows, head, of_key, first, c, mean);
      const uint32_t of_group = MagnitudeBits(mean, kRoundingGroup);
      largest = largest > of_group ? largest : of_group;
    }
    for (int apart = kWarpRows; apart < 32; apart *= 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, largest, apart);
      largest = largest > other ? largest : other;
    }
    const uint8_t exponent = Slots<T>::Exponent(largest);
    int32_t centroid = 0;
    if (divisor > 0) centroid = of_key.slot[first];
    for (int32_t c = channel; divisor > 0 && c < rows.n_channels; c += step) {
      GroupMean<T, kPlain>(rows, head, of_key, first, c, mean);
      StoreGroup<T>(rows, head, layer, centroid, c, mean, exponent);
    }
    __syncwarp();
    // No thread reads the old mean any more.
    if (divisor > 0 && channel == 0) {
      rows.Row<T>(rows.dictionary, head, centroid).SetExponent(exponent);
    }
  }
}

// Divides a whole mean by its norm, whose squares are added channel after channel. It is computed
// twice, because no thread can keep it.
template <class T>
__device__ void MergeNormalized(const RowPlaces& rows, const FullChunk& head, int32_t layer,
                                const KeyArrays& of_key, int32_t first) {
  const float divisor = of_key.divisor[first];
  if (divisor == 0) return;
  const int32_t centroid = of_key.slot[first];
  float mean[kRoundingGroup], squares = 0;
  uint32_t largest = 0;
  for (int32_t channel = 0; channel < rows.n_channels; channel += kRoundingGroup) {
    GroupMean<T, false>(rows, head, of_key, first, channel, mean);
    for (int c = 0; c < kRoundingGroup; ++c) {
      if (channel + c < rows.n_channels) squares += mean[c] * mean[c];
    }
    const uint32_t of_group = MagnitudeBits(mean, kRoundingGroup);
    largest = largest > of_group ? largest : of_group;
  }
  const float norm = fmaxf(sqrtf(squares), kSmallestNorm);
  // Division is monotonic: the largest channel gives the largest quotient.
  const uint8_t exponent = Slots<T>::Exponent(MagnitudeBits(__uint_as_float(largest) / norm));
  for (int32_t channel = 0; channel < rows.n_channels; channel += kRoundingGroup) {
    GroupMean<T, false>(rows, head, of_key, first, channel, mean);
    for (float& x : mean) x /= norm;
    StoreGroup<T>(rows, head, layer, centroid, channel, mean, exponent);
  }
  rows.Row<T>(rows.dictionary, head, centroid).SetExponent(exponent);
}

// Adjacent threads read adjacent addresses: slots of a channel of the keys, channels of a slot of
// the values.
template <class T, bool kPlain>
__device__ void Merge(const UpdateArgs& args, const FullChunk& head, const KeyArrays& of_key) {
  const int32_t n = args.blocks.wave_span, layer = args.blocks.layer;
  const bool whole_keys = !kPlain && args.keys.normalizes,
             whole_values = !kPlain && args.values.normalizes;
  for (int32_t i = threadIdx.x; (whole_keys || whole_values) && i < n; i += blockDim.x) {
    if (whole_keys) MergeNormalized<T>(args.keys, head, layer, of_key, i);
    if (whole_values) MergeNormalized<T>(args.values, head, layer, of_key, i);
  }
  if constexpr (Slots<T>::kScaled) {
    if (!whole_keys) MergeScaled<T, kPlain>(args.keys, head, layer, of_key, n);
    if (!whole_values) MergeScaled<T, kPlain>(args.values, head, layer, of_key, n);
  } else {
    const int32_t key_groups = whole_keys ? 0 : args.keys.groups();
    for (int32_t item = threadIdx.x; item < n * key_groups; item += blockDim.x) {
      MergeGroup<T, kPlain>(args.keys, head, layer, of_key, item % n, item / n);
    }
    const int32_t groups = whole_values ? 0 : args.values.groups();
    for (int32_t item = threadIdx.x; item < n * groups; item += blockDim.x) {
      MergeGroup<T, kPlain>(args.values, head, layer, of_key, item / groups, item % groups);
    }
  }
}

// Grid (sequences, kv heads). T: type of keys, values and centroids.
template <class T, bool kPlain>
__global__ void __launch_bounds__(kMaxThreads, 1) UpdateDictionaries(UpdateArgs args) {
  FullChunk head;
  if (!FindFullChunk(args.blocks, args.wave, head)) return;
  const KeyArrays of_key = Arrays(args.blocks.wave_span);
  if (head.n_next > head.n_old) Score<T>(args, head, of_key);
  __syncthreads();
  Assign(args, head, of_key);
  __syncthreads();
  Count(args, head, of_key);
  __syncthreads();
  Merge<T, kPlain>(args, head, of_key);
}

template <class T>
auto UpdateKernel(bool plain) {
  return plain ? UpdateDictionaries<T, true> : UpdateDictionaries<T, false>;
}

}  // namespace
}  // namespace cuda

void UpdateChunksCuda(DeviceContext& context, const AttentionArgs& layer_args, int wave) {
  const AttentionBlocks& blocks = layer_args.blocks;
  const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
  const bool has_delta = blocks.delta_scale != nullptr;
  if (has_delta) SubtractPredictionsCuda(context, layer_args, wave);
  const cuda::UpdateArgs args = {
      .blocks = blocks,
      .wave = {layer_args.seqs.device, wave},
      .keys = {.pending = blocks.recent_keys.place,
               .dictionary = blocks.dictionary_keys.place,
               .slot_stride = 1,
               .channel_stride = kBlockSlots,
               .n_channels = blocks.merge == Merge::kKeysAndValues ? d : 0,
               .block_channels = d,
               .is_value = false,
               .from_mean = true,
               .normalizes = blocks.normalizes},
      .values = {.pending = blocks.recent_values.place,
                 .dictionary = blocks.dictionary_values.place,
                 .slot_stride = ValueStride(dv),
                 .channel_stride = 1,
                 .n_channels = dv,
                 .block_channels = ValueStride(dv),
                 .is_value = true,
                 .from_mean = !has_delta,
                 .normalizes = blocks.normalizes && !has_delta}};
  const int groups = blocks.wave_span * (args.keys.groups() + args.values.groups());
  const auto threads = std::bit_ceil(static_cast<unsigned>(
      std::clamp(groups / cuda::kGroupsPerThread, cuda::kMinThreads, cuda::kMaxThreads)));
  const size_t shared_bytes = static_cast<size_t>(blocks.wave_span) * cuda::kSharedBytesPerKey;
  const bool plain = !has_delta && !blocks.normalizes;
  const auto kernel =
      VisitSlots(blocks.dtype, [=]<class T>(Slots<T>) { return cuda::UpdateKernel<T>(plain); });
  cuda::Launch(context, kernel, cuda::HeadGrid(layer_args), threads, shared_bytes, args);
}

}  // namespace ovq::kernels
