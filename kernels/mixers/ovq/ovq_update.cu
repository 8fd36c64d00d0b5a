// The update of the dictionaries whose chunk is full: one thread block for a head of a session.
// Selection, order of the sums and rounding are those of the CPU, so equal keys and scores give
// equal bytes.
#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/common/cuda/cuda_device.h"
#include "kernels/common/cuda/shared.cuh"
#include "kernels/mixers/common/cuda/attend_tile.cuh"
#include "kernels/mixers/common/cuda/members.cuh"
#include "kernels/mixers/common/stochastic_rounding.h"
#include "kernels/mixers/ovq/ovq.h"

namespace ovq {
namespace cuda {
namespace {

constexpr int kMinThreads = 64;
constexpr int kMaxThreads = 512;
constexpr int kGroupsPerThread = 4;  // rows in groups of kRoundingGroup channels
constexpr size_t kSharedBytesPerKey = 12;

// Rows of keys or of values, in the pending chunk and in the dictionary alike: channel c of slot i
// of a block is element i * slot_stride + c * channel_stride.
struct RowPlaces {
  StatePlace pending;
  StatePlace dictionary;
  int32_t slot_stride;
  int32_t channel_stride;
  int32_t n_channels;
  bool is_value;

  constexpr int32_t groups() const { return (n_channels + kRoundingGroup - 1) / kRoundingGroup; }
  template <class T>
  constexpr T* Row(const StatePlace& place, std::byte* session, int kv_head, int32_t i) const {
    return reinterpret_cast<T*>(place.At(session, kv_head, i / kBlockSlots)) +
           static_cast<int64_t>(i % kBlockSlots) * slot_stride;
  }
};

struct UpdateArgs {
  DeviceSeqs seqs;
  LiveSlots live;
  RowPlaces keys, values;
  StatePlace best_score, best_slot, counts, log_counts;
  int32_t wave, chunk_len, layer;
};

// What one thread block updates: from n_old to n_next centroids.
struct HeadUpdate {
  std::byte* session;
  int kv_head;
  int64_t chunk;
  int32_t n_old, n_next;
};

// One element per key of the chunk, all in shared memory.
struct ChunkArrays {
  SharedPtr<float> score;         // that decides who becomes a centroid
  SharedPtr<int32_t> assignment;  // centroid that the key goes to
  SharedPtr<int32_t> next;        // the next key that goes there, or -1
  SharedPtr<float> divisor;  // in score's place: count of the centroid, 0 but for its first key
};

__device__ ChunkArrays Arrays(int32_t chunk_len) {
  const auto bytes = static_cast<uint32_t>(chunk_len) * 4;
  return {.score = DynamicShared<float>(0),
          .assignment = DynamicShared<int32_t>(bytes),
          .next = DynamicShared<int32_t>(2 * bytes),
          .divisor = DynamicShared<float>(0)};
}

// Dot product of the chunk's key 0 and key i, channel after channel.
template <class T>
__device__ float ScoreWithFirst(const UpdateArgs& args, const HeadUpdate& update, int32_t i) {
  const T* first = args.keys.Row<T>(args.keys.pending, update.session, update.kv_head, 0);
  const T* key = args.keys.Row<T>(args.keys.pending, update.session, update.kv_head, i);
  float sum = 0;
  for (int32_t c = 0; c < args.keys.n_channels; ++c) {
    const int32_t at = c * args.keys.channel_stride;
    sum = fmaf(ToFloat(first[at]), ToFloat(key[at]), sum);
  }
  return sum;
}

template <class T>
__device__ void Score(const UpdateArgs& args, const HeadUpdate& update, const ChunkArrays& chunk) {
  for (int32_t i = threadIdx.x; i < args.chunk_len; i += blockDim.x) {
    const float score = update.n_old == 0 ? ScoreWithFirst<T>(args, update, i)
                                          : *reinterpret_cast<const float*>(args.best_score.At(
                                                update.session, update.kv_head, i));
    // NaN, which only broken weights give, comes last.
    chunk.score[i] = score != score ? INFINITY : score;
  }
}

// The keys of the lowest scores become centroids first_new, first_new + 1, ... in ascending order
// of (score, index); the others go to their best old one. In the first chunk that is 0, whose
// first key is key 0 and takes no part.
__device__ void Assign(const UpdateArgs& args, const HeadUpdate& update, const ChunkArrays& chunk) {
  const bool first_chunk = update.n_old == 0;
  const int32_t first_key = first_chunk ? 1 : 0;
  const int32_t first_new = first_chunk ? 1 : update.n_old;
  const int32_t n_new = update.n_next - first_new;
  for (int32_t i = threadIdx.x; i < args.chunk_len; i += blockDim.x) {
    int32_t target = first_chunk ? 0
                                 : *reinterpret_cast<const int32_t*>(
                                       args.best_slot.At(update.session, update.kv_head, i));
    if (n_new > 0 && i >= first_key) {
      const float mine = chunk.score[i];
      int32_t rank = 0;
      for (int32_t j = first_key; j < args.chunk_len; ++j) {
        const float other = chunk.score[j];
        rank += other < mine || (other == mine && j < i) ? 1 : 0;
      }
      if (rank < n_new) target = first_new + rank;
    }
    chunk.assignment[i] = target;
  }
}

__device__ void Count(const UpdateArgs& args, const HeadUpdate& update, const ChunkArrays& chunk) {
  for (int32_t i = threadIdx.x; i < args.chunk_len; i += blockDim.x) {
    const int32_t members = LinkMembers(chunk.assignment, args.chunk_len, i, chunk.next);
    float divisor = 0;
    if (members > 0) {
      const int32_t centroid = chunk.assignment[i];
      const int32_t block = centroid / kBlockSlots, slot = centroid % kBlockSlots;
      divisor = AddToCount(
          members,
          reinterpret_cast<uint32_t*>(args.counts.At(update.session, update.kv_head, block)) + slot,
          reinterpret_cast<float*>(args.log_counts.At(update.session, update.kv_head, block)) +
              slot);
    }
    chunk.divisor[i] = divisor;
  }
}

// A group of channels of the centroid that key `first` is the lowest of: += sum over its keys of
// (key - row) / count, the keys in ascending order. A new centroid's row is zero.
template <class T>
__device__ void MergeGroup(const UpdateArgs& args, const HeadUpdate& update,
                           const ChunkArrays& chunk, const RowPlaces& rows, int32_t first,
                           int32_t group) {
  const float divisor = chunk.divisor[first];
  if (divisor == 0) return;
  const int32_t centroid = chunk.assignment[first];
  const int32_t channel = group * kRoundingGroup;
  const int32_t n = rows.n_channels - channel;
  const int64_t at = static_cast<int64_t>(channel) * rows.channel_stride;
  T* row = rows.Row<T>(rows.dictionary, update.session, update.kv_head, centroid) + at;
  float old[kRoundingGroup], sum[kRoundingGroup];
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) {
    old[c] = c < n ? ToFloat(row[c * rows.channel_stride]) : 0;
    sum[c] = 0;
  }
  for (int32_t key = first; key >= 0;) {
    const T* member = rows.Row<T>(rows.pending, update.session, update.kv_head, key) + at;
#pragma unroll
    for (int c = 0; c < kRoundingGroup; ++c) {
      if (c < n) sum[c] += ToFloat(member[c * rows.channel_stride]) - old[c];
    }
    const int32_t next = chunk.next[key];
    key = next;
  }
#pragma unroll
  for (int c = 0; c < kRoundingGroup; ++c) sum[c] = old[c] + sum[c] / divisor;
  RoundGroup(sum, n,
             {.layer = static_cast<uint32_t>(args.layer),
              .kv_head = static_cast<uint32_t>(update.kv_head),
              .row = static_cast<uint32_t>(centroid),
              .is_value = rows.is_value,
              .chunk = update.chunk},
             static_cast<uint32_t>(channel), row, static_cast<size_t>(rows.channel_stride));
}

// Neighbouring threads read neighbouring addresses: slots of a channel of the keys, channels of a
// slot of the values.
template <class T>
__device__ void Merge(const UpdateArgs& args, const HeadUpdate& update, const ChunkArrays& chunk) {
  const int32_t n = args.chunk_len;
  for (int32_t item = threadIdx.x; item < n * args.keys.groups(); item += blockDim.x) {
    MergeGroup<T>(args, update, chunk, args.keys, item % n, item / n);
  }
  const int32_t groups = args.values.groups();
  for (int32_t item = threadIdx.x; item < n * groups; item += blockDim.x) {
    MergeGroup<T>(args, update, chunk, args.values, item / groups, item % groups);
  }
}

// Grid (sequences, kv heads). T: of keys, values and centroids.
template <class T>
__global__ void __launch_bounds__(kMaxThreads, 1) UpdateDictionaries(UpdateArgs args) {
  const int s = static_cast<int>(blockIdx.x);
  std::byte* session = args.seqs.state[s];
  if (session == nullptr) return;
  const WaveRows rows = RowsOfWave(args.seqs, s, args.chunk_len, args.wave);
  if (rows.end != rows.span_begin + args.chunk_len) return;
  const HeadUpdate update = {.session = session,
                             .kv_head = static_cast<int>(blockIdx.y),
                             .chunk = rows.span_begin / args.chunk_len,
                             .n_old = args.live.At(s, args.wave),
                             .n_next = args.live.At(s, args.wave + 1)};
  const ChunkArrays chunk = Arrays(args.chunk_len);
  Score<T>(args, update, chunk);
  __syncthreads();
  Assign(args, update, chunk);
  __syncthreads();
  Count(args, update, chunk);
  __syncthreads();
  Merge<T>(args, update, chunk);
}

UpdateArgs MakeArgs(const OvqArgs& args, int wave) {
  const OvqPlaces places = args.state.Places(args.where);
  const AttentionShape& shape = args.config.shape;
  return {.seqs = args.seqs.device,
          .live = args.live(),
          .keys = {.pending = places.pending_keys,
                   .dictionary = places.keys,
                   .slot_stride = 1,
                   .channel_stride = kBlockSlots,
                   .n_channels = shape.head_dim,
                   .is_value = false},
          .values = {.pending = places.pending_values,
                     .dictionary = places.values,
                     .slot_stride = ValueStride(shape.value_head_dim),
                     .channel_stride = 1,
                     .n_channels = shape.value_head_dim,
                     .is_value = true},
          .best_score = places.best_score,
          .best_slot = places.best_slot,
          .counts = places.counts,
          .log_counts = places.log_counts,
          .wave = wave,
          .chunk_len = args.config.chunk_len,
          .layer = args.config.layer};
}

}  // namespace
}  // namespace cuda

void OvqUpdateCuda(DeviceContext& context, const OvqArgs& args, int wave) {
  const cuda::UpdateArgs update = cuda::MakeArgs(args, wave);
  const int groups = update.chunk_len * (update.keys.groups() + update.values.groups());
  const auto threads = std::bit_ceil(static_cast<unsigned>(
      std::clamp(groups / cuda::kGroupsPerThread, cuda::kMinThreads, cuda::kMaxThreads)));
  const dim3 grid(static_cast<unsigned>(args.seqs.n_seqs()),
                  static_cast<unsigned>(args.config.shape.n_kv_heads));
  const size_t shared_bytes = static_cast<size_t>(update.chunk_len) * cuda::kSharedBytesPerKey;
  if (args.config.dtype == DType::kBF16) {
    cuda::Launch(context, cuda::UpdateDictionaries<BF16>, grid, threads, shared_bytes, update);
  } else {
    cuda::Launch(context, cuda::UpdateDictionaries<float>, grid, threads, shared_bytes, update);
  }
}

}  // namespace ovq
