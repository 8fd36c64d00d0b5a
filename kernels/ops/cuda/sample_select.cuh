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

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kBins = 1024;
inline constexpr int kDigitBits = 8;
inline constexpr int kIdBits = 24;  // token ids are below 2^24

// Offsets in a block's shared memory, in bytes.
inline constexpr uint32_t kLowBytes = 0;  // uint32 [kBins], lower halves of the bins' sums
inline constexpr uint32_t kHighBytes = kLowBytes + 4 * kBins;            // uint32 [kBins]
inline constexpr uint32_t kPartBytes = kHighBytes + 4 * kBins;           // 8 bytes [kSampleWarps]
inline constexpr uint32_t kChosenBytes = kPartBytes + 8 * kSampleWarps;  // uint64 [2]
inline constexpr uint32_t kCountBytes = kChosenBytes + 16;               // uint32
inline constexpr uint32_t kSampleSharedBytes = kCountBytes + 16;

// A token's place in an order: its key, ties by its id. 88 bits at most.
using Place = unsigned __int128;

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
  uint64_t before;  // sum of the earlier bins
};

// The first bin with which the sum reaches target, which is positive and at most the sum of all.
__device__ inline ChosenBin FindBin(int n_bins, uint64_t target) {
  const SharedPtr<uint64_t> chosen = DynamicShared<uint64_t>(kChosenBytes);
  if (Warp() == 0) {
    const int each = n_bins / 32;
    int bin = Lane() * each;
    uint64_t own = 0;
    for (int i = 0; i < each; ++i) own += BinSum(bin + i);
    const uint64_t through = WarpPrefixSum(own);
    uint64_t before = through - own;
    if (before < target && target <= through) {
      for (uint64_t sum = BinSum(bin); before + sum < target; sum = BinSum(bin)) {
        before += sum;
        ++bin;
      }
      chosen[0] = static_cast<uint64_t>(bin);
      chosen[1] = before;
    }
  }
  __syncthreads();
  const uint64_t bin = chosen[0];
  const uint64_t before = chosen[1];
  return {static_cast<int>(bin), before};
}

// The place in `list` (n tokens) at which the sum of measures, by ascending place, reaches target.
template <class Order>
__device__ inline Place SelectInList(const Order& order, const int32_t* list, unsigned n,
                                     uint64_t target) {
  Place place = 0;
  for (int shift = order.key_bits() + kIdBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
    ClearBins(1 << kDigitBits);
    BinAdder adder;
    for (unsigned i = threadIdx.x; i < n; i += kSampleThreads) {
      const int32_t id = list[i];
      const Place at = Place{order.Key(id)} << kIdBits | static_cast<unsigned>(id);
      if ((at ^ place) >> shift >> kDigitBits != 0) continue;
      const auto digit = static_cast<unsigned>(at >> shift) & ((1u << kDigitBits) - 1);
      adder.Add(static_cast<int>(digit), order.Measure(id));
    }
    adder.Flush();
    __syncthreads();
    const ChosenBin chosen = FindBin(1 << kDigitBits, target);
    place |= Place{static_cast<unsigned>(chosen.bin)} << shift;
    target -= chosen.before;
  }
  return place;
}

// The last place of the fewest tokens, by ascending place, whose measures reach target(sum of all).
// list [vocab]: scratch. An order gives for a token id: Has (it takes part), Measure, Key
// (key_bits() wide) and Bin, which never descends as the key ascends.
template <class Order, class Target>
__device__ inline Place SelectLast(const Order& order, int vocab, Target target_of, int32_t* list) {
  ClearBins(kBins);
  BinAdder adder;
  uint64_t own = 0;
  for (int id = static_cast<int>(threadIdx.x); id < vocab; id += kSampleThreads) {
    if (!order.Has(id)) continue;
    const uint64_t measure = order.Measure(id);
    adder.Add(order.Bin(id), measure);
    own += measure;
  }
  adder.Flush();
  const uint64_t target = target_of(BlockSum(own));
  const ChosenBin chosen = FindBin(kBins, target);
  const SharedPtr<unsigned> count = DynamicShared<unsigned>(kCountBytes);
  ForEach(vocab, [&](int id) {
    if (order.Has(id) && order.Bin(id) == chosen.bin) list[atomicAdd(count, 1u)] = id;
  });
  const unsigned n = count[0];
  __syncthreads();
  return SelectInList(order, list, n, target - chosen.before);
}

template <class Order>
__device__ inline bool Reaches(const Order& order, int32_t id, Place last) {
  return (Place{order.Key(id)} << kIdBits | static_cast<unsigned>(id)) <= last;
}

}  // namespace ovq::kernels::cuda
