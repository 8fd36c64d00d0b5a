// The update of the dictionaries whose chunk is full (chunk_update.h). Selection, order of the sums
// and rounding are those of the CPU, so equal keys and scores give equal bytes. A few thread blocks
// share a head: each assigns all keys of the chunk, and then updates the centroids whose lowest key
// is one of its own, which no other one reads.
#include <algorithm>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 256;
// A chunk of up to 128 keys has this many parts, a longer one fewer, as each part compares all
// keys.
constexpr int kMostParts = 8;
constexpr int kKeyLanes = 4;      // lanes that compare a key with the others
constexpr int kThreadBlocks = 2;  // of a multiprocessor, where most chunks end
constexpr uint32_t kWholeWarp = 0xffffffffu;
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
  int32_t parts;    // of a head
  int32_t n_parts;  // of all heads of all sequences
};

// The keys [begin, end) of the chunk that a head fills.
struct ChunkPart {
  FullChunk head;
  int32_t begin, end;
};
__device__ bool FindPart(const UpdateArgs& args, int32_t index, ChunkPart& part) {
  const int32_t n = args.blocks.wave_span, pair = index / args.parts;
  const int32_t n_keys = (n + args.parts - 1) / args.parts;
  part.begin = index % args.parts * n_keys;
  part.end = part.begin + n_keys < n ? part.begin + n_keys : n;
  const int32_t heads = args.blocks.shape.n_kv_heads;
  return FindFullChunk(args.blocks, args.wave, pair / heads, pair % heads, part.head);
}

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

// Calls fn(key, lane) for every key of the chunk from kKeyLanes adjacent lanes each; whole warps
// call it together, also for keys behind the last.
template <class Fn>
__device__ void EachKey(int32_t n, Fn fn) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t first = 0; first < n; first += kThreads / kKeyLanes) {
    fn(first + thread / kKeyLanes, thread % kKeyLanes);
  }
}
template <class Fold>
__device__ int32_t FoldLanes(int32_t value, Fold fold) {
  for (int apart = 1; apart < kKeyLanes; apart *= 2) {
    value = fold(value, __shfl_xor_sync(kWholeWarp, value, apart));
  }
  return value;
}

// AssignChunk of chunk_update.h, by counting the keys that come before each one.
__device__ void Assign(const UpdateArgs& args, const FullChunk& head, const KeyArrays& of_key) {
  const bool first_chunk = head.n_old == 0;
  const int32_t n = args.blocks.wave_span, first_key = first_chunk ? 1 : 0;
  const int32_t first_new = first_chunk ? 1 : head.n_old;
  const int32_t n_new = head.n_next - first_new;
  const int32_t* best = args.blocks.best_slot.At<int32_t>(head.session, head.kv_head);
  EachKey(n, [&](int32_t i, int32_t lane) {
    int32_t target = first_chunk || i >= n ? 0 : best[i], rank = 0;
    const bool chooses = n_new > 0 && i >= first_key && i < n;
    if (chooses) {
      const float mine = of_key.score[i];
      for (int32_t j = first_key + lane; j < n; j += kKeyLanes) {
        const float other = of_key.score[j];
        rank += other < mine || (other == mine && j < i) ? 1 : 0;
      }
    }
    rank = FoldLanes(rank, [](int32_t a, int32_t b) { return a + b; });
    if (chooses && rank < n_new) target = first_new + rank;
    if (lane == 0 && i < n) of_key.slot[i] = target;
  });
}

// Adds the number of keys of the centroid whose lowest key is i; the new count.
__device__ float AddCount(const UpdateArgs& args, const FullChunk& head, int32_t centroid,
                          int32_t members) {
  const AttentionBlocks& blocks = args.blocks;
  const int32_t block = centroid / kBlockSlots, slot = centroid % kBlockSlots;
  uint32_t* count = blocks.counts.At<uint32_t>(head.session, head.kv_head, block) + slot;
  const uint64_t sum = uint64_t{*count} + static_cast<uint32_t>(members);
  *count = sum < 0xffffffffu ? static_cast<uint32_t>(sum) : 0xffffffffu;
  const auto divisor = static_cast<float>(*count);
  blocks.log_counts.At<float>(head.session, head.kv_head, block)[slot] = logf(divisor);
  return divisor;
}

// Links the keys of every centroid, and counts them where the lowest is this thread block's.
__device__ void Count(const UpdateArgs& args, const ChunkPart& part, const KeyArrays& of_key) {
  const int32_t n = args.blocks.wave_span;
  EachKey(n, [&](int32_t i, int32_t lane) {
    int32_t mine = 0, members = 0, lowest = n, next = n;
    if (i < n) mine = of_key.slot[i];
    for (int32_t j = n - 1 - lane; i < n && j >= 0; j -= kKeyLanes) {
      const int32_t other = of_key.slot[j];
      if (other != mine) continue;
      ++members;
      lowest = j;
      if (j > i) next = j;
    }
    const auto smaller = [](int32_t a, int32_t b) { return a < b ? a : b; };
    members = FoldLanes(members, [](int32_t a, int32_t b) { return a + b; });
    lowest = FoldLanes(lowest, smaller);
    next = FoldLanes(next, smaller);
    if (lane > 0 || i >= n) return;
    of_key.next[i] = next < n ? next : -1;
    if (i < part.begin || i >= part.end) return;
    of_key.divisor[i] = lowest == i ? AddCount(args, part.head, mine, members) : 0;
  });
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
                            const KeyArrays& of_key, int32_t begin_key, int32_t end_key) {
  // Values begin with the upper half of the warps, so that both are updated at once.
  const int32_t thread = (threadIdx.x + (rows.is_value ? kThreads / 2 : 0)) % kThreads,
                lane = thread % 32, channel = lane / kWarpRows * kRoundingGroup,
                step = kRowLanes * kRoundingGroup;
  for (int32_t begin = begin_key + thread / 32 * kWarpRows; begin < end_key;
       begin += kThreads / kRowLanes) {
    const int32_t first = begin + lane % kWarpRows;
    float divisor = 0, mean[kRoundingGroup];
    if (first < end_key) divisor = of_key.divisor[first];
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
__device__ void Merge(const UpdateArgs& args, const ChunkPart& part, const KeyArrays& of_key) {
  const int32_t n = part.end - part.begin, layer = args.blocks.layer;
  const FullChunk& head = part.head;
  const bool whole_keys = !kPlain && args.keys.normalizes,
             whole_values = !kPlain && args.values.normalizes;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = part.begin + thread; (whole_keys || whole_values) && i < part.end;
       i += kThreads) {
    if (whole_keys) MergeNormalized<T>(args.keys, head, layer, of_key, i);
    if (whole_values) MergeNormalized<T>(args.values, head, layer, of_key, i);
  }
  if constexpr (Slots<T>::kScaled) {
    const auto merge = [&](const RowPlaces& rows) {
      MergeScaled<T, kPlain>(rows, head, layer, of_key, part.begin, part.end);
    };
    if (!whole_keys) merge(args.keys);
    if (!whole_values) merge(args.values);
  } else {
    const int32_t of_keys = whole_keys ? 0 : n * args.keys.groups(),
                  groups = whole_values ? 0 : args.values.groups();
    for (int32_t item = thread; item < of_keys + n * groups; item += kThreads) {
      const bool is_key = item < of_keys;
      const int32_t i = is_key ? item % n : (item - of_keys) / groups,
                    group = is_key ? item / n : (item - of_keys) % groups;
      MergeGroup<T, kPlain>(is_key ? args.keys : args.values, head, layer, of_key, part.begin + i,
                            group);
    }
  }
}

template <class T, bool kPlain>
__device__ void UpdatePart(const UpdateArgs& args, const ChunkPart& part) {
  const KeyArrays of_key = Arrays(args.blocks.wave_span);
  if (part.head.n_next > part.head.n_old) Score<T>(args, part.head, of_key);
  __syncthreads();
  Assign(args, part.head, of_key);
  __syncthreads();
  Count(args, part, of_key);
  __syncthreads();
  Merge<T, kPlain>(args, part, of_key);
  __syncthreads();
}

// T: type of keys, values and centroids. A thread block has every gridDim.x-th part; its threads
// look at one each and list those whose chunk ends. They read nothing but what is copied to the
// device before the batch's first kernel begins, so they need not wait for the kernels before.
template <class T, bool kPlain>
__global__ void __launch_bounds__(kThreads, kThreadBlocks)
    UpdateDictionaries(const __grid_constant__ UpdateArgs args) {
  AllowNextKernel();
  const auto keys = static_cast<uint32_t>(args.blocks.wave_span);
  const SharedPtr<int32_t> list = DynamicShared<int32_t>(keys * kSharedBytesPerKey);
  const SharedPtr<uint32_t> count = SharedCast<uint32_t>(list + kThreads);
  const auto step = static_cast<int32_t>(gridDim.x);
  for (int32_t first = static_cast<int32_t>(blockIdx.x); first < args.n_parts;
       first += kThreads * step) {
    const int32_t index = first + static_cast<int32_t>(threadIdx.x) * step;
    if (threadIdx.x == 0) count[0] = 0;
    __syncthreads();
    ChunkPart part;
    if (index < args.n_parts && FindPart(args, index, part)) list[atomicAdd(count, 1u)] = index;
    __syncthreads();
    const uint32_t n = count[0];
    WaitForKernelsBefore();
    for (uint32_t i = 0; i < n; ++i) {
      const int32_t ends = list[i];
      FindPart(args, ends, part);
      UpdatePart<T, kPlain>(args, part);
    }
    __syncthreads();
  }
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
  const int parts = std::clamp(cuda::kMostParts * 128 / blocks.wave_span, 1, cuda::kMostParts);
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
                 .normalizes = blocks.normalizes && !has_delta},
      .parts = parts,
      .n_parts = layer_args.seqs.n_seqs() * blocks.shape.n_kv_heads * parts};
  if (args.n_parts == 0) return;
  // Mostly no chunk ends in a batch of one token a sequence, and in others most do.
  const int blocks_each = layer_args.seqs.one_token_each() ? 1 : cuda::kThreadBlocks;
  const int grid = std::min(args.n_parts, context.cuda().n_multiprocessors * blocks_each);
  const size_t shared_bytes = static_cast<size_t>(blocks.wave_span) * cuda::kSharedBytesPerKey +
                              (cuda::kThreads + 1) * sizeof(int32_t);
  const bool plain = !has_delta && !blocks.normalizes;
  const auto kernel =
      VisitSlots(blocks.dtype, [=]<class T>(Slots<T>) { return cuda::UpdateKernel<T>(plain); });
  cuda::LaunchEarly(context, kernel, grid, cuda::kThreads, shared_bytes, args);
}

}  // namespace ovq::kernels
