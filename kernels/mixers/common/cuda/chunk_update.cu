// The update of the dictionaries whose chunk is full (chunk_update.h). Selection, order of the sums
// and rounding are those of the CPU, so equal keys and scores give equal bytes. A few thread blocks
// share a head: each assigns all keys of the chunk and sorts them by centroid, and then updates a
// part of the centroids that have keys, which no other one reads. Adjacent threads have adjacent
// ones of these centroids, so that they share the sectors of a channel's slots.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/ptx.cuh"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/chunk_update.h"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/slot_variance.h"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kThreads = 320;
constexpr int kWarps = kThreads / 32;
// A chunk of up to 128 keys has at most this many parts, a longer one fewer, as each part compares
// all keys.
constexpr int kMostParts = 8;
constexpr int kKeyLanes = 4;      // lanes that compare a key with the others
constexpr int kThreadBlocks = 2;  // of a multiprocessor, where most chunks end
constexpr uint32_t kWholeWarp = 0xffffffffu;
// For types with scales: kRowLanes lanes of a warp share the groups of one row, and a warp has
// adjacent rows.
constexpr int kRowLanes = 4, kWarpRows = 32 / kRowLanes;

// kRoundingGroup channels of a row as they are stored. Those of a value lie in whole words.
template <class T>
using Group = std::array<T, kRoundingGroup>;
template <class T>
using GroupWord = std::conditional_t<sizeof(T) == 1, uint2, uint4>;
template <class T>
using GroupWords = std::array<GroupWord<T>, sizeof(Group<T>) / sizeof(GroupWord<T>)>;

// The keys (transposed) or the values of a head, in the pending chunk and in the dictionary alike.
template <bool kValue>
struct RowPlaces {
  StatePlace pending;
  StatePlace dictionary;
  int32_t n_channels;
  int32_t block_channels;  // n_channels with padding
  bool from_mean;          // adds the rows' distances from the mean, not the rows
  bool normalizes;

  constexpr int32_t groups() const { return (n_channels + kRoundingGroup - 1) / kRoundingGroup; }
  template <class T>
  __device__ SlotRow<T> Row(const StatePlace& place, const FullChunk& head, int32_t i) const {
    T* block = place.At<T>(head.session, head.kv_head, i / kBlockSlots);
    if constexpr (kValue) return ValueRow(block, block_channels, i % kBlockSlots);
    return KeyRow(block, block_channels, i % kBlockSlots);
  }
  // A group that is loaded: values stay in words until they are used.
  template <class T>
  using Loaded = std::conditional_t<kValue, GroupWords<T>, Group<T>>;
  // The channels from `channel` on; keys' behind the last are zeros.
  template <class T>
  __device__ Loaded<T> Load(const SlotRow<T>& row, int32_t channel) const {
    Loaded<T> group = {};
    if constexpr (kValue) {
      group = *reinterpret_cast<const Loaded<T>*>(row.data + channel);
    } else {
#pragma unroll
      for (int c = 0; c < kRoundingGroup; ++c) {
        if (channel + c < n_channels) group[c] = row.data[(channel + c) * kBlockSlots];
      }
    }
    return group;
  }
  template <class T>
  __device__ void Store(const SlotRow<T>& row, int32_t channel, const Group<T>& group) const {
    if constexpr (kValue) {
      *reinterpret_cast<GroupWords<T>*>(row.data + channel) = std::bit_cast<GroupWords<T>>(group);
    } else {
#pragma unroll
      for (int c = 0; c < kRoundingGroup; ++c) {
        if (channel + c < n_channels) row.data[(channel + c) * kBlockSlots] = group[c];
      }
    }
  }
};

struct UpdateArgs {
  AttentionBlocks blocks;
  DeviceWave wave;
  RowPlaces<false> keys;
  RowPlaces<true> values;
  int32_t n_seqs;
  int32_t most_parts;  // of a head
};

// In shared memory, one element per key of the chunk unless noted.
struct KeyArrays {
  SharedPtr<float> score;     // decides which keys become centroids
  SharedPtr<uint16_t> order;  // keys by centroid, then by key; shares score's memory
  SharedPtr<uint16_t>
      first;                 // [n + 1] where the k-th centroid's keys begin in `order`, then n; too
  SharedPtr<int32_t> slot;   // the key's centroid
  SharedPtr<float> divisor;  // count of the k-th centroid that has keys
  SharedPtr<int32_t> n_found;  // [1] centroids that have keys
  // Where the chunks end: bits of each warp's sequences, and the sequences in ascending order.
  SharedPtr<uint32_t> bits;     // [kWarps]
  SharedPtr<int32_t> sequence;  // [kThreads]

  static constexpr size_t Bytes(int32_t n) {
    return (static_cast<size_t>(n) * 3 + 2 + kWarps + kThreads) * sizeof(int32_t);
  }
  __device__ explicit KeyArrays(uint32_t n)
      : score(DynamicShared<float>(0)),
        order(DynamicShared<uint16_t>(0)),
        first(DynamicShared<uint16_t>(2 * n)),
        slot(DynamicShared<int32_t>(4 * n + 4)),
        divisor(DynamicShared<float>(8 * n + 4)),
        n_found(DynamicShared<int32_t>(12 * n + 4)),
        bits(DynamicShared<uint32_t>(12 * n + 8)),
        sequence(DynamicShared<int32_t>(12 * n + 8 + 4 * kWarps)) {}
};

// A centroid that gets keys: elements [begin, end) of KeyArrays::order.
struct Centroid {
  int32_t index, slot, begin, end;

  __device__ Centroid(const KeyArrays& of_key, int32_t k) : index(k) {
    begin = of_key.first[k];
    end = of_key.first[k + 1];
    const int32_t key = of_key.order[begin];
    slot = of_key.slot[key];
  }
};

// Dot product of the chunk's keys 0 and i, one chain over the channels.
template <class T>
__device__ float ScoreWithFirst(const RowPlaces<false>& keys, const FullChunk& head, int32_t i) {
  const SlotRow<T> first = keys.Row<T>(keys.pending, head, 0),
                   key = keys.Row<T>(keys.pending, head, i);
  const float scale = first.scale();
  float sum = 0;
#pragma unroll 16
  for (int32_t c = 0; c < keys.n_channels; ++c) {
    const int32_t at = c * kBlockSlots;
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
// Sum over a key's lanes.
__device__ int32_t SumOfLanes(int32_t value) {
  for (int apart = 1; apart < kKeyLanes; apart *= 2) {
    value += __shfl_xor_sync(kWholeWarp, value, apart);
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
#pragma unroll 8
      for (int32_t j = first_key + lane; j < n; j += kKeyLanes) {
        const float other = of_key.score[j];
        rank += other < mine || (other == mine && j < i) ? 1 : 0;
      }
    }
    rank = SumOfLanes(rank);
    if (chooses && rank < n_new) target = first_new + rank;
    if (lane == 0 && i < n) of_key.slot[i] = target;
  });
}

// Sorts the keys by centroid, those of one by key, by counting the keys that come before each one.
__device__ void Sort(int32_t n, const KeyArrays& of_key) {
  EachKey(n, [&](int32_t i, int32_t lane) {
    int32_t mine = 0, place = 0;
    if (i < n) mine = of_key.slot[i];
#pragma unroll 8
    for (int32_t j = lane; j < n; j += kKeyLanes) {
      const int32_t other = of_key.slot[j];
      place += other < mine || (other == mine && j < i) ? 1 : 0;
    }
    place = SumOfLanes(place);
    if (lane == 0 && i < n) of_key.order[place] = static_cast<uint16_t>(i);
  });
}

// Lists the centroids that have keys, in ascending order.
__device__ void ListCentroids(int32_t n, const KeyArrays& of_key) {
  const auto lane = static_cast<int32_t>(threadIdx.x);
  if (lane >= 32) return;
  int32_t found = 0;
  for (int32_t begin = 0; begin < n; begin += 32) {
    const int32_t i = begin + lane;
    bool is_first = i < n;
    if (i > 0 && i < n) {
      const int32_t key = of_key.order[i], before = of_key.order[i - 1];
      const int32_t slot = of_key.slot[key], other = of_key.slot[before];
      is_first = slot != other;
    }
    const uint32_t bits = __ballot_sync(kWholeWarp, is_first);
    if (is_first) {
      of_key.first[found + __popc(bits & ((1u << lane) - 1))] = static_cast<uint16_t>(i);
    }
    found += __popc(bits);
  }
  if (lane > 0) return;
  of_key.first[found] = static_cast<uint16_t>(n);
  of_key.n_found[0] = found;
}

// Adds the numbers of keys of the centroids [begin, end) to their counts.
__device__ void Count(const AttentionBlocks& blocks, const FullChunk& head, int32_t begin,
                      int32_t end, const KeyArrays& of_key) {
  for (int32_t k = begin + static_cast<int32_t>(threadIdx.x); k < end; k += kThreads) {
    const Centroid centroid(of_key, k);
    const int32_t block = centroid.slot / kBlockSlots, slot = centroid.slot % kBlockSlots;
    uint32_t* count = blocks.counts.At<uint32_t>(head.session, head.kv_head, block) + slot;
    const uint64_t sum = uint64_t{*count} + static_cast<uint32_t>(centroid.end - centroid.begin);
    *count = sum < 0xffffffffu ? static_cast<uint32_t>(sum) : 0xffffffffu;
    const auto divisor = static_cast<float>(*count);
    blocks.log_counts.At<float>(head.session, head.kv_head, block)[slot] = logf(divisor);
    of_key.divisor[k] = divisor;
  }
}

// Adds to the biases of the centroids [begin, end) what the variances of their keys give.
template <class T>
__device__ void AddVariances(const UpdateArgs& args, const FullChunk& head, int32_t begin,
                             int32_t end, const KeyArrays& of_key) {
  for (int32_t k = begin + static_cast<int32_t>(threadIdx.x); k < end; k += kThreads) {
    const int32_t i = Centroid(of_key, k).slot, block = i / kBlockSlots, slot = i % kBlockSlots;
    const uint32_t count = args.blocks.counts.At<uint32_t>(head.session, head.kv_head, block)[slot];
    args.blocks.log_counts.At<float>(head.session, head.kv_head, block)[slot] += VarianceBias(
        args.blocks, head.kv_head, count, args.keys.Row<T>(args.keys.dictionary, head, i));
  }
}

// Computes some channels of a centroid's mean: mean += sum_i (k_i - mean) / count over its keys in
// ascending order. A new centroid's mean starts at zero. Some keys are loaded before those before
// them are added. kPlain: rows are from_mean, as in the paper.
template <class T, bool kPlain, bool kValue>
__device__ void GroupMean(const RowPlaces<kValue>& rows, const FullChunk& head,
                          const KeyArrays& of_key, const Centroid& centroid, int32_t channel,
                          float (&sum)[kRoundingGroup]) {
  constexpr int kAhead = kValue && sizeof(T) <= 2 ? 4 : 2;
  using Loaded = typename RowPlaces<kValue>::template Loaded<T>;
  Loaded member[kAhead] = {};
  float scale[kAhead] = {};
  const auto load = [&](int32_t i) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (i + a >= centroid.end) continue;
      const int32_t key = of_key.order[i + a];
      const SlotRow<T> row = rows.template Row<T>(rows.pending, head, key);
      member[a] = rows.Load(row, channel);
      scale[a] = row.scale();
    }
  };
  const SlotRow<T> mean = rows.template Row<T>(rows.dictionary, head, centroid.slot);
  const Loaded stored = rows.Load(mean, channel);
  load(centroid.begin);
  const float old_scale = mean.scale();
  float old[kRoundingGroup], base[kRoundingGroup];
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) {
    old[c] = ToFloat(std::bit_cast<Group<T>>(stored)[c]) * old_scale;
    base[c] = kPlain || rows.from_mean ? old[c] : 0;
    sum[c] = 0;
  }
  for (int32_t i = centroid.begin; i < centroid.end; i += kAhead) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (i + a >= centroid.end) continue;
      const auto group = std::bit_cast<Group<T>>(member[a]);
#pragma unroll
      for (int c = 0; c < kRoundingGroup; ++c) sum[c] += ToFloat(group[c]) * scale[a] - base[c];
    }
    load(i + kAhead);
  }
  const float divisor = of_key.divisor[centroid.index];
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) {
    sum[c] = channel + c < rows.n_channels ? old[c] + sum[c] / divisor : 0;
  }
}

// exponent: the whole mean's.
template <class T, bool kValue>
__device__ void StoreGroup(const RowPlaces<kValue>& rows, const FullChunk& head, int32_t layer,
                           int32_t centroid, int32_t channel, const float (&mean)[kRoundingGroup],
                           uint8_t exponent) {
  const RoundingKey key = {.layer = static_cast<uint32_t>(layer),
                           .kv_head = static_cast<uint32_t>(head.kv_head),
                           .row = static_cast<uint32_t>(centroid),
                           .is_value = kValue,
                           .chunk = head.chunk};
  Group<T> group = {};
  RoundGroup(mean, rows.n_channels - channel, key, static_cast<uint32_t>(channel),
             InverseExponentScale(exponent), group.data(), 1);
  rows.Store(rows.template Row<T>(rows.dictionary, head, centroid), channel, group);
}

// The part of a head's centroids that one thread block updates.
template <class T, bool kPlain>
struct Merging {
  const FullChunk& head;
  int32_t layer;
  const KeyArrays& of_key;
  int32_t begin, end;  // centroids

  template <bool kValue>
  __device__ void MergeGroup(const RowPlaces<kValue>& rows, int32_t k, int32_t group) const {
    const Centroid centroid(of_key, k);
    const int32_t channel = group * kRoundingGroup;
    float mean[kRoundingGroup];
    GroupMean<T, kPlain>(rows, head, of_key, centroid, channel, mean);
    StoreGroup<T>(rows, head, layer, centroid.slot, channel, mean, kUnitExponent);
  }

  // Updates rows with scales, whose channels all depend on the largest. A mean is computed twice,
  // because no thread can keep it.
  template <bool kValue>
  __device__ void MergeScaled(const RowPlaces<kValue>& rows) const {
    // Values begin with the upper half of the warps, so that both are updated at once.
    const int32_t thread = (threadIdx.x + (kValue ? kThreads / 2 : 0)) % kThreads,
                  lane = thread % 32, channel = lane / kWarpRows * kRoundingGroup,
                  step = kRowLanes * kRoundingGroup;
    for (int32_t warp_begin = begin + thread / 32 * kWarpRows; warp_begin < end;
         warp_begin += kThreads / kRowLanes) {
      const int32_t k = warp_begin + lane % kWarpRows;
      const bool exists = k < end;
      const Centroid centroid(of_key, exists ? k : warp_begin);
      float mean[kRoundingGroup];
      uint32_t largest = 0;
      for (int32_t c = channel; exists && c < rows.n_channels; c += step) {
        GroupMean<T, kPlain>(rows, head, of_key, centroid, c, mean);
        const uint32_t of_group = MagnitudeBits(mean, kRoundingGroup);
        largest = largest > of_group ? largest : of_group;
      }
      for (int apart = kWarpRows; apart < 32; apart *= 2) {
        const uint32_t other = __shfl_xor_sync(kWholeWarp, largest, apart);
        largest = largest > other ? largest : other;
      }
      const uint8_t exponent = Slots<T>::Exponent(largest);
      for (int32_t c = channel; exists && c < rows.n_channels; c += step) {
        GroupMean<T, kPlain>(rows, head, of_key, centroid, c, mean);
        StoreGroup<T>(rows, head, layer, centroid.slot, c, mean, exponent);
      }
      __syncwarp();
      // No thread reads the old mean any more.
      if (exists && channel == 0) {
        rows.template Row<T>(rows.dictionary, head, centroid.slot).SetExponent(exponent);
      }
    }
  }

  // Divides whole means by their norms, whose squares are added channel after channel. A mean is
  // computed twice, because no thread can keep it.
  template <bool kValue>
  __device__ void MergeNormalized(const RowPlaces<kValue>& rows) const {
    for (int32_t k = begin + static_cast<int32_t>(threadIdx.x); k < end; k += kThreads) {
      const Centroid centroid(of_key, k);
      float mean[kRoundingGroup], squares = 0;
      uint32_t largest = 0;
      for (int32_t channel = 0; channel < rows.n_channels; channel += kRoundingGroup) {
        GroupMean<T, false>(rows, head, of_key, centroid, channel, mean);
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
        GroupMean<T, false>(rows, head, of_key, centroid, channel, mean);
        for (float& x : mean) x /= norm;
        StoreGroup<T>(rows, head, layer, centroid.slot, channel, mean, exponent);
      }
      rows.template Row<T>(rows.dictionary, head, centroid.slot).SetExponent(exponent);
    }
  }

  // Adjacent threads read adjacent addresses: slots of a channel of the keys, channels of a slot of
  // the values.
  __device__ void Merge(const RowPlaces<false>& keys, const RowPlaces<true>& values) const {
    const bool whole_keys = !kPlain && keys.normalizes, whole_values = !kPlain && values.normalizes;
    if (whole_keys) MergeNormalized(keys);
    if (whole_values) MergeNormalized(values);
    if constexpr (Slots<T>::kScaled) {
      if (!whole_keys) MergeScaled(keys);
      if (!whole_values) MergeScaled(values);
    } else {
      const int32_t n = end - begin, of_keys = whole_keys ? 0 : n * keys.groups(),
                    groups = whole_values ? 0 : values.groups();
      for (auto item = static_cast<int32_t>(threadIdx.x); item < of_keys + n * groups;
           item += kThreads) {
        if (item < of_keys) {
          MergeGroup(keys, begin + item % n, item / n);
        } else {
          MergeGroup(values, begin + (item - of_keys) / groups, (item - of_keys) % groups);
        }
      }
    }
  }
};

template <class T, bool kPlain>
__device__ void UpdatePart(const UpdateArgs& args, const FullChunk& head, int32_t part,
                           int32_t parts, const KeyArrays& of_key) {
  const int32_t n = args.blocks.wave_span;
  if (head.n_next > head.n_old) Score<T>(args, head, of_key);
  __syncthreads();
  Assign(args, head, of_key);
  __syncthreads();
  Sort(n, of_key);
  __syncthreads();
  ListCentroids(n, of_key);
  __syncthreads();
  const int32_t found = of_key.n_found[0];
  const int32_t begin = found * part / parts, end = found * (part + 1) / parts;
  Count(args.blocks, head, begin, end, of_key);
  __syncthreads();
  Merging<T, kPlain>{head, args.blocks.layer, of_key, begin, end}.Merge(args.keys, args.values);
  __syncthreads();
  if (args.blocks.variance_scale == nullptr) return;
  AddVariances<T>(args, head, begin, end, of_key);
  __syncthreads();
}

// Lists the sequences from `first` on, one a thread, whose chunk ends; their number.
__device__ int32_t ListSequences(const UpdateArgs& args, int32_t first, const KeyArrays& lists) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  FullChunk head;
  const bool ends = first + thread < args.n_seqs &&
                    FindFullChunk(args.blocks, args.wave, first + thread, 0, head);
  const uint32_t mine = __ballot_sync(kWholeWarp, ends);
  if (thread % 32 == 0) lists.bits[thread / 32] = mine;
  __syncthreads();
  int32_t before = __popc(mine & ((1u << thread % 32) - 1)), n = 0;
  for (int32_t warp = 0; warp < kWarps; ++warp) {
    const uint32_t bits = lists.bits[warp];
    if (warp < thread / 32) before += __popc(bits);
    n += __popc(bits);
  }
  if (ends) lists.sequence[before] = first + thread;
  __syncthreads();
  return n;
}

// T: type of keys, values and centroids. The thread blocks divide the heads whose chunk ends among
// them, in parts if there are more thread blocks than heads. They find them by what is copied to
// the device before the batch's first kernel begins, so they need not wait for the kernels before.
template <class T, bool kPlain>
__global__ void __launch_bounds__(kThreads, kPlain ? kThreadBlocks : 1)
    UpdateDictionaries(const __grid_constant__ UpdateArgs args) {
  AllowNextKernel();
  const KeyArrays of_key(static_cast<uint32_t>(args.blocks.wave_span));
  const int32_t heads = args.blocks.shape.n_kv_heads, step = static_cast<int32_t>(gridDim.x);
  for (int32_t first = 0; first < args.n_seqs; first += kThreads) {
    const int32_t n = ListSequences(args, first, of_key) * heads;
    WaitForKernelsBefore();
    if (n == 0) continue;
    const int32_t fitting = step / n < 1 ? 1 : step / n;
    const int32_t parts = fitting < args.most_parts ? fitting : args.most_parts;
    for (auto i = static_cast<int32_t>(blockIdx.x); i < n * parts; i += step) {
      const int32_t pair = i / parts, sequence = of_key.sequence[pair / heads];
      FullChunk head;
      if (FindFullChunk(args.blocks, args.wave, sequence, pair % heads, head)) {
        UpdatePart<T, kPlain>(args, head, i % parts, parts, of_key);
      }
    }
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
  const int n_seqs = layer_args.seqs.n_seqs(), heads = blocks.shape.n_kv_heads;
  const int most_parts = std::clamp(cuda::kMostParts * 128 / blocks.wave_span, 1, cuda::kMostParts);
  const cuda::UpdateArgs args = {
      .blocks = blocks,
      .wave = {layer_args.seqs.device, wave},
      .keys = {.pending = blocks.recent_keys.place,
               .dictionary = blocks.dictionary_keys.place,
               .n_channels = blocks.merge == Merge::kKeysAndValues ? d : 0,
               .block_channels = d,
               .from_mean = true,
               .normalizes = blocks.normalizes},
      .values = {.pending = blocks.recent_values.place,
                 .dictionary = blocks.dictionary_values.place,
                 .n_channels = dv,
                 .block_channels = ValueStride(dv),
                 .from_mean = !has_delta,
                 .normalizes = blocks.normalizes && !has_delta},
      .n_seqs = n_seqs,
      .most_parts = most_parts};
  if (n_seqs == 0) return;
  // Mostly no chunk ends in a batch of one token a sequence, and in others most do.
  const int blocks_each = layer_args.seqs.one_token_each() ? 1 : cuda::kThreadBlocks;
  const int grid =
      static_cast<int>(std::min<int64_t>(int64_t{n_seqs} * heads * most_parts,
                                         int64_t{context.cuda().n_multiprocessors} * blocks_each));
  const bool plain = !has_delta && !blocks.normalizes;
  const auto kernel =
      VisitSlots(blocks.dtype, [=]<class T>(Slots<T>) { return cuda::UpdateKernel<T>(plain); });
  cuda::LaunchEarly(context, kernel, grid, cuda::kThreads, cuda::KeyArrays::Bytes(blocks.wave_span),
                    args);
}

}  // namespace ovq::kernels
