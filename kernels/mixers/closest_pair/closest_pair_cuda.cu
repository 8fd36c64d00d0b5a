// Closest-pair attention on CUDA, by the rules of closest_pair_cpu.cc: the attention kernels over
// slots and the chunk's tokens, then the joins and merges of the wave's tokens, one thread block
// for each head of a session. Distances are summed in the CPU's order.
#include "kernels/common/cuda/cuda_device.h"
#include "kernels/mixers/closest_pair/pair_mean.cuh"
#include "kernels/mixers/common/cuda/full_chunk.cuh"
#include "kernels/mixers/common/slot_variance.h"

namespace ovq::kernels {
namespace cuda {
namespace {

constexpr int kValueSums = 16, kCheckChannels = 16;

constexpr uint32_t SharedFloats(const AttentionShape& shape) {
  return static_cast<uint32_t>((shape.head_dim + 3) / 4 * 4 + ValueStride(shape.value_head_dim));
}
constexpr uint32_t WorkSlots(int32_t chunk_len) {
  return static_cast<uint32_t>(2 * NumBlocks(chunk_len) * kBlockSlots);
}
constexpr size_t PairSharedBytes(const AttentionBlocks& blocks) {
  return PairShared::kBytes + size_t{SharedFloats(blocks.shape)} * sizeof(float) +
         size_t{2} * WorkSlots(blocks.wave_span) * sizeof(int32_t);
}
// Shared memory fits any supported GPU, even for the widest heads.
static_assert(PairShared::kBytes + 2 * 1024 * sizeof(float) +
                  2 * WorkSlots(kMaxPairCudaChunkLen) * sizeof(int32_t) <=
              size_t{99} << 10);

template <class T>
struct Dictionary {
  PairBlocks<T> at;
  PairShared block;
  SharedPtr<float> key;           // [head_dim], key of the querying candidate
  SharedPtr<float> value;         // [value_stride]
  SharedPtr<int32_t> new_slots;   // [work slots]
  SharedPtr<int32_t> free_slots;  // [work slots]

  __device__ Dictionary(const ClosestPairArgs& args, const PairChunk& chunk)
      : at{args.blocks, args.places, chunk} {
    const uint32_t floats = PairShared::kBytes,
                   slots = floats + SharedFloats(args.blocks.shape) * 4,
                   value_at = floats + (args.blocks.shape.head_dim + 3) / 4 * 16;
    block = {DynamicShared<float>(0), DynamicShared<int32_t>(kPairWarps * 4),
             DynamicShared<unsigned long long>(kPairWarps * 8)};
    key = DynamicShared<float>(floats);
    value = DynamicShared<float>(value_at);
    new_slots = DynamicShared<int32_t>(slots);
    free_slots = DynamicShared<int32_t>(slots + WorkSlots(chunk.length) * 4);
  }

  // See PairPass::FindCandidate.
  __device__ int32_t FindCandidate(int64_t token) const {
    if (at.chunk.IsPinned(token)) return -1;
    if (token >= at.chunk.begin || !at.chunk.HasMerged()) return at.chunk.FindCandidate(token);
    Lowest found;
    for (int32_t i = threadIdx.x; i < at.chunk.n_slots; i += kPairThreads) {
      if (at.IsUnjoinedToken(i, token)) found = {0, 0, i};
    }
    return block.ReduceLowest(found).index;
  }

  // Joins and merges of the chunk's tokens [from, to).
  __device__ void Pass(int64_t from, int64_t to) const {
    for (int64_t offset = from; offset < to; ++offset) {
      for (int64_t i = at.chunk.JoinedAt(offset); i < at.chunk.JoinedAt(offset + 1); ++i) {
        if (i == 0) InitValueSize(at.chunk.begin + offset + 1);
        const int32_t joins = FindCandidate(i);
        if (joins < 0) continue;
        if (i >= at.chunk.begin && threadIdx.x == 0) at.Oldest(joins) = static_cast<uint32_t>(i);
        UpdatePartner(joins);
      }
      for (int64_t m = at.chunk.MergedAt(offset); m < at.chunk.MergedAt(offset + 1); ++m) {
        if (m == 0) UpdateValueSize();
        MergeClosest(m);
      }
    }
  }

  __device__ void EndChunk() const {
    FindSlots();
    MoveToSlots();
    __syncthreads();
    const PairChunkEnd<T> slots = {at};
    const int32_t first = at.chunk.first_token();
    for (int32_t slot = threadIdx.x; slot < at.chunk.n_slots_next; slot += kPairThreads) {
      int32_t& partner = slots.SlotPartner(slot);
      if (partner <= first) continue;
      const int32_t now = new_slots[partner - 1 - first];
      partner = now + 1;
    }
    for (int32_t i = first + threadIdx.x; i < at.chunk.end(); i += kPairThreads) at.Partner(i) = 0;
  }

 private:
  // |value - value of i|^2, summed in the order of nearest_cpu.cc.
  __device__ float ValueDistance(int32_t i) const {
    return SquaredValue(i, [&](int c) -> float { return value[c]; });
  }
  // |value of i|^2
  __device__ float SquaredNorm(int32_t i) const {
    return SquaredValue(i, [](int) { return 0.0f; });
  }
  // The sum over channels c of (from(c) - value of i)^2.
  template <class From>
  __device__ float SquaredValue(int32_t i, From from) const {
    const T* other = at.Value(i);
    const float scale = at.ValueSlot(i).scale();
    float sums[kValueSums] = {};
    for (int begin = 0; begin < ValueStride(at.dv()); begin += kValueSums) {
#pragma unroll
      for (int c = 0; c < kValueSums; ++c) {
        const float x = from(begin + c);
        const float apart = x - ToFloat(other[begin + c]) * scale;
        sums[c] = fmaf(apart, apart, sums[c]);
      }
    }
#pragma unroll
    for (int half = kValueSums / 2; half > 0; half /= 2) {
#pragma unroll
      for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
    }
    return sums[0];
  }

  // |key - key of i|^2, or any number above `limit` if it exceeds that.
  __device__ float KeyDistance(int32_t i, float limit) const {
    const T* other = at.Key(i);
    const float scale = at.KeySlot(i).scale();
    float sum = 0;
    for (int begin = 0; begin < at.d() && !(sum > limit); begin += kCheckChannels) {
      const int end = begin + kCheckChannels < at.d() ? begin + kCheckChannels : at.d();
      for (int c = begin; c < end; ++c) {
        const float x = key[c];
        const float apart = x - ToFloat(other[c * kBlockSlots]) * scale;
        sum = fmaf(apart, apart, sum);
      }
    }
    return sum;
  }

  // PairBlocks::MergeVariance of a candidate, given its key's channels.
  template <class Key>
  __device__ float MergeVariance(const Key& channels) const {
    if (at.chunk.rule.merge_variance == 0) return 0;
    float squares = 0;
    for (int c = 0; c < at.d(); ++c) {
      const float x = channels[c];
      squares = fmaf(x, x, squares);
    }
    return at.MergeVariance(squares);
  }

  // Measures V over the sequence's first n tokens. Like UpdateValueSize it is rare; inlined, both
  // would take registers from the distance loop.
  __attribute__((noinline)) __device__ void InitValueSize(int64_t n) const {
    float values = 0, keys = 0;
    for (int64_t token = threadIdx.x; token < n; token += kPairThreads) {
      values += SquaredNorm(at.chunk.FindCandidate(token));
      keys += at.KeySize(at.chunk.FindCandidate(token));
    }
    values = block.ReduceSum(values);
    keys = block.ReduceSum(keys);
    if (threadIdx.x == 0)
      at.value_size() = at.MeasureValueSize(values, keys, static_cast<float>(n));
    __syncthreads();
  }

  // Measures V over the candidates and stores it if the old one is far off; bounds are then scaled
  // to stay lower bounds.
  __attribute__((noinline)) __device__ void UpdateValueSize() const {
    float values = 0, keys = 0, n = 0;
    for (int32_t i = threadIdx.x; i < at.chunk.end(); i += kPairThreads) {
      if (at.Partner(i) == 0) continue;
      values += SquaredNorm(i);
      keys += at.KeySize(i);
      n += 1;
    }
    values = block.ReduceSum(values);
    keys = block.ReduceSum(keys);
    n = block.ReduceSum(n);
    const float size = at.MeasureValueSize(values, keys, fmaxf(n, 1)), old = at.value_size(),
                old_scale = at.ValueScale();
    __syncthreads();
    if (size <= old * kMaxPairSizeChange && old <= size * kMaxPairSizeChange) return;
    if (threadIdx.x == 0) at.value_size() = size;
    __syncthreads();
    const float shrink = BoundShrinkFactor(old_scale, at.ValueScale());
    for (int32_t i = threadIdx.x; i < at.chunk.end(); i += kPairThreads) {
      if (at.Partner(i) == 0) continue;
      at.Bound(i) *= shrink;
      at.Partner(i) = kStalePartner;
    }
    __syncthreads();
  }

  // Sets bound and partner of a candidate from all others, by the rules of FindNearestCpu.
  __device__ void UpdatePartner(int32_t self, int32_t gone_low = -1, int32_t gone_high = -1) const {
    __syncthreads();
    if (threadIdx.x == 0) at.Partner(self) = 0;
    for (int c = threadIdx.x; c < at.d(); c += kPairThreads) {
      key[c] = at.KeySlot(self)[c];
    }
    for (int c = threadIdx.x; c < ValueStride(at.dv()); c += kPairThreads) {
      value[c] = at.ValueSlot(self)[c];
    }
    __syncthreads();
    const float scale = at.ValueScale(), own_variance = MergeVariance(key);
    Lowest nearest;
    for (int32_t i = threadIdx.x; i < at.chunk.end(); i += kPairThreads) {
      int32_t& partner = at.Partner(i);
      if (partner == 0) continue;
      const bool is_lost = partner == gone_low + 1 || partner == gone_high + 1;
      if (is_lost) partner = kStalePartner;
      const float of_keys = KeyDistance(i, nearest.key);
      if (!(of_keys <= nearest.key)) continue;
      const float variances = own_variance + MergeVariance(at.KeySlot(i));
      const float distance = of_keys + scale * ValueDistance(i) + variances;
      if (distance < INFINITY) nearest = PickLower(nearest, {distance, at.Oldest(i), i});
      if (distance == 0 && partner == kStalePartner && (is_lost || at.Bound(i) > 0)) {
        at.Bound(i) = 0;
        partner = self + 1;
      }
    }
    nearest = block.ReduceLowest(nearest);
    if (threadIdx.x == 0) {
      at.Bound(self) = nearest.key;
      at.Partner(self) = nearest.index < 0 ? kStalePartner : nearest.index + 1;
    }
    __syncthreads();
  }

  // The lowest bound: a stale candidate's if there is one, else that of the oldest pair.
  __device__ Lowest LowestBound() const {
    Lowest lowest;
    for (int32_t i = threadIdx.x; i < at.chunk.end(); i += kPairThreads) {
      const int32_t partner = at.Partner(i);
      const float bound = at.Bound(i);
      if (partner == 0 || !(bound < INFINITY)) continue;
      const unsigned long long order =
          partner > 0 ? PairOrder(at.Oldest(i), at.Oldest(partner - 1)) : 0;
      const Lowest mine = {bound, order, i};
      lowest = PickLower(lowest, mine);
    }
    return block.ReduceLowest(lowest);
  }
  // Oldest candidate except `other`; -1 if there is none.
  __device__ int32_t Oldest(int32_t other) const {
    Lowest oldest;
    for (int32_t i = threadIdx.x; i < at.chunk.end(); i += kPairThreads) {
      if (at.Partner(i) != 0 && i != other) oldest = PickLower(oldest, {0, at.Oldest(i), i});
    }
    return block.ReduceLowest(oldest).index;
  }

  // The closest pair, `low` the older one. high = -1: fewer than two candidates.
  __device__ void Closest(int32_t& low, int32_t& high) const {
    for (Lowest lowest; (lowest = LowestBound()).index >= 0;) {
      const int32_t i = lowest.index, partner = at.Partner(i) - 1;
      if (partner >= 0) {
        const bool older = at.Oldest(i) < at.Oldest(partner);
        low = older ? i : partner;
        high = older ? partner : i;
        return;
      }
      UpdatePartner(i);
    }
    low = Oldest(-1);
    high = low < 0 ? -1 : Oldest(low);
  }

  __device__ void MergeClosest(int64_t merge) const {
    int32_t low, high;
    Closest(low, high);
    if (high < 0) return;
    const uint32_t of_low = at.Count(low), of_high = at.Count(high);
    const int32_t mean = at.chunk.first_merged() + static_cast<int32_t>(merge);
    const PairMean of = {low, high, mean, HighShare(of_low, of_high)};
    StoreMean(at, block, of, /*is_value=*/false);
    StoreMean(at, block, of, /*is_value=*/true);
    __syncthreads();
    if (threadIdx.x == 0) {
      at.StoredCount(mean) = AddCounts(of_low, of_high);
      at.Oldest(mean) = at.Oldest(low);
      at.Partner(low) = at.Partner(high) = 0;
    }
    UpdatePartner(mean, low, high);
  }

  // Fills new_slots for what the chunk leaves in its work blocks: free slots, then new ones, in
  // ascending order; -1 for candidates that are gone.
  __device__ void FindSlots() const {
    const PairChunkEnd<T> slots = {at};
    const auto n_work = static_cast<int32_t>(WorkSlots(at.chunk.length));
    int32_t n_free = 0;
    const int32_t n_slots = at.chunk.n_merges() > 0 ? at.chunk.n_slots : 0;
    for (int32_t begin = 0; begin < n_slots && n_free < n_work; begin += kPairThreads) {
      const int32_t slot = begin + static_cast<int32_t>(threadIdx.x);
      int32_t found;
      const bool is_free = slot < n_slots && !slots.IsSlotInUse(slot);
      const int32_t rank = n_free + block.RankInBlock(is_free, found);
      if (is_free && rank < n_work) free_slots[rank] = slot;
      n_free += found;
    }
    __syncthreads();
    int32_t n_left = 0;
    for (int32_t begin = 0; begin < n_work; begin += kPairThreads) {
      const int32_t i = begin + static_cast<int32_t>(threadIdx.x);
      int32_t found;
      const bool stays = i < n_work && slots.Stays(at.chunk.first_token() + i);
      const int32_t rank = n_left + block.RankInBlock(stays, found);
      int32_t slot = at.chunk.n_slots + rank - n_free;
      if (rank < n_free) slot = free_slots[rank];
      if (i < n_work) new_slots[i] = stays ? slot : -1;
      n_left += found;
    }
    __syncthreads();
  }

  // Neighbouring threads write neighbouring slots of a key channel, or channels of a value.
  __device__ void MoveToSlots() const {
    const PairChunkEnd<T> slots = {at};
    const auto n_work = static_cast<int32_t>(WorkSlots(at.chunk.length));
    const int32_t first = at.chunk.first_token(), stride = ValueStride(at.dv());
    for (int32_t item = threadIdx.x; item < n_work * at.d(); item += kPairThreads) {
      const int32_t i = item % n_work, c = item / n_work * kBlockSlots, slot = new_slots[i];
      if (slot < 0) continue;
      slots.template SlotBlock<T>(at.blocks.dictionary_keys.place, slot)[slot % kBlockSlots + c] =
          at.Key(first + i)[c];
    }
    for (int32_t item = threadIdx.x; item < n_work * stride; item += kPairThreads) {
      const int32_t i = item / stride, c = item % stride, slot = new_slots[i];
      if (slot < 0) continue;
      slots.template SlotBlock<T>(at.blocks.dictionary_values.place,
                                  slot)[slot % kBlockSlots * stride + c] = at.Value(first + i)[c];
    }
    for (int32_t i = threadIdx.x; i < n_work; i += kPairThreads) {
      const int32_t slot = new_slots[i], s = slot % kBlockSlots;
      if (slot < 0) continue;
      if constexpr (Slots<T>::kScaled) {
        T* keys = slots.template SlotBlock<T>(at.blocks.dictionary_keys.place, slot);
        T* values = slots.template SlotBlock<T>(at.blocks.dictionary_values.place, slot);
        *KeyRow(keys, at.d(), s).exponent = *at.KeySlot(first + i).exponent;
        *ValueRow(values, stride, s).exponent = *at.ValueSlot(first + i).exponent;
      }
      const uint32_t count = at.Count(first + i);
      slots.MoveFields(first + i, slot,
                       logf(static_cast<float>(count)) +
                           VarianceBias(at.blocks, at.chunk.kv_head, count, at.KeySlot(first + i)));
    }
  }
};

// Grid: (sequences, kv heads).
template <class T>
__global__ void __launch_bounds__(kPairThreads)
    PassTokens(const __grid_constant__ ClosestPairArgs args,
               const __grid_constant__ DeviceWave wave) {
  const int s = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.y);
  std::byte* session = wave.seqs.state[s];
  const int32_t length = args.blocks.wave_span;
  if (session == nullptr) return;
  const WaveTokens tokens = TokensInWave(wave, s, length);
  if (tokens.begin >= tokens.end) return;
  const PairChunk chunk = {.session = session,
                           .kv_head = kv_head,
                           .begin = tokens.span_begin,
                           .length = length,
                           .slot_cap = args.blocks.live.HeadSlotCap(s, kv_head),
                           .n_slots = args.blocks.LiveAt(s, kv_head, wave.index),
                           .n_slots_next = args.blocks.LiveAt(s, kv_head, wave.index + 1),
                           .rule = args.rule};
  const Dictionary<T> dictionary(args, chunk);
  if (chunk.JoinedAt(tokens.end - chunk.begin) > 0) {
    dictionary.Pass(tokens.begin - chunk.begin, tokens.end - chunk.begin);
  }
  if (tokens.end == chunk.begin + length) dictionary.EndChunk();
}

}  // namespace
}  // namespace cuda

void ClosestPairCuda(DeviceContext& context, const ClosestPairArgs& args) {
  const auto pass =
      VisitSlots(args.blocks.dtype, []<class T>(Slots<T>) { return cuda::PassTokens<T>; });
  AttendWavesCuda(context, args, {}, [&](const DeviceWave& wave) {
    cuda::Launch(context, pass, cuda::HeadGrid(args), cuda::kPairThreads,
                 cuda::PairSharedBytes(args.blocks), args, wave);
  });
}

}  // namespace ovq::kernels
