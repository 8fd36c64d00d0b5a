// Selects the first few tokens of a row in some order without sorting the row: a thread block of
// kSampleThreads sums the tokens' measures in bins of that order, finds the bin in which the
// running sum reaches a target, and refines that bin digit by digit. Measures are integers, so that
// a sum does not depend on the order in which threads add.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/cuda/shared.cuh"
#include "kernels/ops/cuda/rows.cuh"

namespace ovq::kernels::cuda {

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kBins = kSampleThreads;
static_assert(kSampleWarps == 32, "a lane for each warp, where warps' sums are added");
inline constexpr int kDigitBits = 8;
inline constexpr int kIdBits = 24;           // token ids are below 2^24
inline constexpr int kLoads = 4;             // tokens of a thread that are on their way at once
inline constexpr unsigned kShortList = 256;  // tokens that are compared with each other

// Offsets in a block's shared memory, in bytes.
inline constexpr uint32_t kLowBytes = 0;  // uint32 [kBins], lower halves of the bins' sums
inline constexpr uint32_t kHighBytes = kLowBytes + 4 * kBins;            // uint32 [kBins]
inline constexpr uint32_t kPartBytes = kHighBytes + 4 * kBins;           // 8 bytes [kSampleWarps]
inline constexpr uint32_t kChosenBytes = kPartBytes + 8 * kSampleWarps;  // uint64 [2]
inline constexpr uint32_t kCountBytes = kChosenBytes + 16;               // uint32
inline constexpr uint32_t kListKeyBytes = kCountBytes + 16;              // uint64 [kShortList]
inline constexpr uint32_t kListMeasureBytes =
    kListKeyBytes + 8 * kShortList;  // uint64 [kShortList]
inline constexpr uint32_t kSampleSharedBytes = kListMeasureBytes + 8 * kShortList;

// A token's place in an order: its key, ties by its id. 88 bits at most.
using Place = unsigned __int128;

template <class Order, class Candidate>
__device__ inline Place FindPlace(const Order& order, int32_t id, const Candidate& candidate) {
  return Place{order.Key(candidate)} << kIdBits | static_cast<unsigned>(id);
}

__device__ inline int Lane() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int Warp() { return static_cast<int>(threadIdx.x / 32); }

template <class T, class Fold>
__device__ inline T BlockReduce(T value, Fold fold) {
  const T result = BlockFold(value, DynamicShared<T>(kPartBytes), kSampleWarps, fold);
  __syncthreads();
  return result;
}

template <class T>
__device__ inline T BlockSum(T value) {
  return BlockReduce(value, [](T a, T b) { return a + b; });
}

template <class T>
__device__ inline T BlockMax(T value) {
  return BlockReduce(value, [](T a, T b) { return a < b ? b : a; });
}

// Calls fn(i) for i < n from all threads of the block, which synchronise at the end.
template <class Fn>
__device__ inline void ForEach(int n, Fn fn) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kSampleThreads) fn(i);
  __syncthreads();
}

// Calls use(i, load(i)) for i = begin, begin + step, ... below end, with kLoads loads before their
// uses.
template <class Load, class Use>
__device__ inline void EachLoaded(int begin, int end, int step, Load load, Use use) {
  for (int first = begin; first < end; first += kLoads * step) {
    decltype(load(first)) loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (first + k * step < end) loaded[k] = load(first + k * step);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      if (first + k * step < end) use(first + k * step, loaded[k]);
    }
  }
}

// Inclusive sum over the lanes of a warp.
__device__ inline uint64_t WarpPrefixSum(uint64_t value) {
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t lower = __shfl_up_sync(kAllLanes, value, distance);
    if (Lane() >= distance) value += lower;
  }
  return value;
}

// Also zeroes the counter.
__device__ inline void ClearBins(int n_bins) {
  const SharedPtr<unsigned> low = DynamicShared<unsigned>(kLowBytes);
  const SharedPtr<unsigned> high = DynamicShared<unsigned>(kHighBytes);
  if (threadIdx.x == 0) {
    const SharedPtr<unsigned> count = DynamicShared<unsigned>(kCountBytes);
    count[0] = 0;
  }
  ForEach(n_bins, [&](int i) {
    low[i] = 0;
    high[i] = 0;
  });
}

// A thread's additions to the bins. Adjacent tokens mostly fall into the same bin, so a thread
// keeps its sum until it meets another bin: threads then do not contend for a bin in which all
// tokens lie.
class BinAdder {
 public:
  __device__ void Add(int bin, uint64_t value) {
    if (bin != bin_) {
      Flush();
      bin_ = bin;
    }
    sum_ += value;
  }
  // Adds 64 bits in two native additions; the result of the lower one says whether it wrapped.
  __device__ void Flush() {
    const auto low = static_cast<unsigned>(sum_);
    auto high = static_cast<unsigned>(sum_ >> 32);
    if (low != 0) {
      const unsigned old = atomicAdd(DynamicShared<unsigned>(kLowBytes) + bin_, low);
      if (old + low < old) ++high;
    }
    if (high != 0) atomicAdd(DynamicShared<unsigned>(kHighBytes) + bin_, high);
    sum_ = 0;
  }

 private:
  int bin_ = 0;
  uint64_t sum_ = 0;
};

__device__ inline uint64_t BinSum(int bin) {
  const SharedPtr<unsigned> low = DynamicShared<unsigned>(kLowBytes);
  const SharedPtr<unsigned> high = DynamicShared<unsigned>(kHighBytes);
  const unsigned lower = low[bin];
  const unsigned upper = high[bin];
  return uint64_t{upper} << 32 | lower;
}

struct ChosenBin {
  int bin;
  uint64_t target;  // less the sum of the earlier bins
};

// The first bin with which the sum reaches target(sum of all), which is positive and at most that
// sum.
template <class Target>
__device__ inline ChosenBin FindBin(int n_bins, Target target_of) {
  const SharedPtr<uint64_t> sums = DynamicShared<uint64_t>(kPartBytes);
  const SharedPtr<uint64_t> chosen = DynamicShared<uint64_t>(kChosenBytes);
  const int bin = static_cast<int>(threadIdx.x);
  const uint64_t own = bin < n_bins ? BinSum(bin) : 0;
  uint64_t through = WarpPrefixSum(own);
  if (Lane() == 31) sums[Warp()] = through;
  __syncthreads();
  const uint64_t of_warp = sums[Lane()];
  const auto add = [](uint64_t a, uint64_t b) { return a + b; };
  through += WarpFold(Lane() < Warp() ? of_warp : 0, add);
  const uint64_t target = target_of(WarpFold(of_warp, add));
  if (through - own < target && target <= through) {
    chosen[0] = static_cast<uint64_t>(bin);
    chosen[1] = target - (through - own);
  }
  __syncthreads();
  const uint64_t found = chosen[0];
  const uint64_t left = chosen[1];
  return {static_cast<int>(found), left};
}

// The place in `list` (n tokens) at which the sum of measures, by ascending place, reaches target.
template <class Order>
__device__ inline Place SelectInLongList(const Order& order, const int32_t* list, unsigned n,
                                         uint64_t target) {
  Place place = 0;
  for (int shift = order.key_bits() + kIdBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    ClearBins(1 << kDigitBits);
    BinAdder adder;
    for (unsigned i = threadIdx.x; i < n; i += kSampleThreads) {
      const int32_t id = list[i];
      const auto candidate = order.Load(id);
      const Place at = FindPlace(order, id, candidate);
      if ((at ^ place) >> shift >> kDigitBits != 0) continue;
      const auto digit = static_cast<unsigned>(at >> shift) & ((1u << kDigitBits) - 1);
      adder.Add(static_cast<int>(digit), order.Measure(candidate));
    }
    adder.Flush();
    __syncthreads();
    const ChosenBin chosen = FindBin(1 << kDigitBits, [target](uint64_t) { return target; });
    place |= Place{static_cast<unsigned>(chosen.bin)} << shift;
    target = chosen.target;
  }
  return place;
}

// SelectInLongList for at most kShortList tokens: a thread adds the measures before its token.
template <class Order>
__device__ inline Place SelectInShortList(const Order& order, const int32_t* list, unsigned n,
                                          uint64_t target) {
  const SharedPtr<uint64_t> keys = DynamicShared<uint64_t>(kListKeyBytes);
  const SharedPtr<uint64_t> measures = DynamicShared<uint64_t>(kListMeasureBytes);
  const SharedPtr<uint64_t> chosen = DynamicShared<uint64_t>(kChosenBytes);
  const SharedPtr<int32_t> ids = DynamicShared<int32_t>(kLowBytes);
  const unsigned i = threadIdx.x;
  const int32_t id = i < n ? list[i] : 0;
  const auto candidate = order.Load(id);
  const uint64_t key = order.Key(candidate), own = order.Measure(candidate);
  if (i < n) {
    keys[i] = key;
    measures[i] = own;
    ids[i] = id;
  }
  __syncthreads();
  uint64_t before = 0;
  for (unsigned j = 0; i < n && j < n; ++j) {
    const uint64_t other = keys[j], measure = measures[j];
    const int32_t other_id = ids[j];
    if (other < key || (other == key && other_id < id)) before += measure;
  }
  if (i < n && before < target && target <= before + own) {
    chosen[0] = key;
    chosen[1] = static_cast<uint64_t>(id);
  }
  __syncthreads();
  const uint64_t found = chosen[0];
  const uint64_t found_id = chosen[1];
  return Place{found} << kIdBits | static_cast<unsigned>(found_id);
}

// The last place of the fewest tokens, by ascending place, whose measures reach target(sum of all).
// list [vocab]: scratch. An order gives for a token id what Load reads, and for that: Weigh (called
// in the first pass), Has (it takes part), Measure, Key (key_bits() wide) and Bin, which never
// descends as the key ascends.
template <class Order, class Target>
__device__ inline Place SelectLast(Order& order, int vocab, Target target_of, int32_t* list) {
  const auto thread = static_cast<int>(threadIdx.x);
  const auto load = [&](int id) { return order.Load(id); };
  ClearBins(kBins);
  BinAdder adder;
  EachLoaded(thread, vocab, kSampleThreads, load, [&](int id, auto candidate) {
    order.Weigh(id, candidate);
    if (order.Has(candidate)) adder.Add(order.Bin(candidate), order.Measure(candidate));
  });
  adder.Flush();
  __syncthreads();
  order.fresh = false;
  const ChosenBin chosen = FindBin(kBins, target_of);
  const SharedPtr<unsigned> count = DynamicShared<unsigned>(kCountBytes);
  EachLoaded(thread, vocab, kSampleThreads, load, [&](int id, auto candidate) {
    if (order.Bin(candidate) == chosen.bin && order.Has(candidate)) {
      list[atomicAdd(count, 1u)] = id;
    }
  });
  __syncthreads();
  const unsigned n = count[0];
  __syncthreads();
  return n <= kShortList ? SelectInShortList(order, list, n, chosen.target)
                         : SelectInLongList(order, list, n, chosen.target);
}

template <class Order, class Candidate>
__device__ inline bool Reaches(const Order& order, int32_t id, const Candidate& candidate,
                               Place last) {
  return FindPlace(order, id, candidate) <= last;
}

}  // namespace ovq::kernels::cuda
