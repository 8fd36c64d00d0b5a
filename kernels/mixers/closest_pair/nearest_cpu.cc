#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "kernels/common/prefetch.h"
#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/nearest.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mixers/closest_pair/nearest_cpu.cc"
#include "kernels/common/highway_targets.h"
//
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
//
#include "kernels/mixers/common/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ovq::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using DI = hn::Rebind<int32_t, D>;
using M = hn::Mask<D>;

constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;
constexpr int kSums = 16;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Folds partial sums, upper half onto lower half.
template <class Part>
HWY_INLINE float AddUp([[maybe_unused]] Part part, hn::Vec<Part> sums) {
#if HWY_TARGET == HWY_SCALAR
  return hn::GetLane(sums);
#else
  if constexpr (hn::MaxLanes(part) > 4) {
    const hn::Half<Part> half;
    return AddUp(half, hn::Add(hn::LowerHalf(half, sums), hn::UpperHalf(half, sums)));
  } else {
    float lanes[hn::MaxLanes(part)];
    hn::StoreU(sums, part, lanes);
    for (size_t half = hn::MaxLanes(part) / 2; half > 0; half /= 2) {
      for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }
#endif
}

// |x - y|^2 of values, with y times its scale. x null: |y|^2 in units of the scale.
template <class T>
HWY_INLINE float ValueDistance(const float* x, const T* y, int value_stride,
                               [[maybe_unused]] float scale = 1) {
  const D d;
  constexpr int kParts = kSums / kLanes;
  V sum[kParts];
  for (int v = 0; v < kParts; ++v) sum[v] = hn::Zero(d);
  for (int c = 0; c < value_stride; c += kSums) {
    for (int v = 0; v < kParts; ++v) {
      V apart = LoadWide(d, y + c + v * kLanes);
      if constexpr (Slots<T>::kScaled) apart = hn::Mul(apart, hn::Set(d, scale));
      if (x != nullptr) apart = hn::Sub(hn::LoadU(d, x + c + v * kLanes), apart);
      sum[v] = hn::MulAdd(apart, apart, sum[v]);
    }
  }
  for (int half = kParts / 2; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) sum[v] = hn::Add(sum[v], sum[v + half]);
  }
  return AddUp(d, sum[0]);
}

HWY_INLINE M Candidates(DI di, hn::Vec<DI> partners) {
  return hn::RebindMask(D(), hn::Not(hn::Eq(partners, hn::Zero(di))));
}

// Exact key distances of one vector of candidates.
template <class T>
HWY_INLINE V ExactKeyDistances(const NearestSearch& search, size_t first) {
  const D d;
  if (search.key == nullptr) return hn::LoadU(d, search.key_distances + first);
  const T* block = static_cast<const T*>(search.blocks[first / kBlockSlots].keys);
  const T* keys = block + first % kBlockSlots;
  [[maybe_unused]] V scale;
  if constexpr (Slots<T>::kScaled) {
    scale = LoadScales(d, block, search.head_dim, static_cast<int>(first % kBlockSlots));
  }
  V sum = hn::Zero(d);
  for (int c = 0; c < search.head_dim; ++c, keys += kBlockSlots) {
    V key = LoadWide(d, keys);
    if constexpr (Slots<T>::kScaled) key = hn::Mul(key, scale);
    const V apart = hn::Sub(hn::Set(d, search.key[c]), key);
    sum = hn::MulAdd(apart, apart, sum);
  }
  return sum;
}

// `distances` of one vector of candidates, with what both candidates' variances add.
template <bool kVaries>
HWY_INLINE V AddVariances(const NearestSearch& search, size_t first, V distances) {
  if constexpr (!kVaries) return distances;
  const D d;
  return hn::Add(distances, hn::Add(hn::Set(d, search.variances[search.self]),
                                    hn::LoadU(d, search.variances + first)));
}

// Full distance of candidate i, given its key distance.
template <class T, bool kVaries>
HWY_INLINE float Distance(const NearestSearch& search, int32_t i, float key_distance) {
  const SlotRow value =
      ValueRow(static_cast<const T*>(search.blocks[static_cast<size_t>(i) / kBlockSlots].values),
               search.value_stride, i % kBlockSlots);
  const float distance =
      key_distance + search.value_scale * ValueDistance(search.value, value.data,
                                                        search.value_stride, value.scale());
  if constexpr (!kVaries) return distance;
  return distance + (search.variances[search.self] + search.variances[i]);
}

// Relative errors of distances stay far below this: float32 sums over at most 1,024 / 16 value
// channels and 1,024 key channels.
constexpr float kSlack = 1e-4f;

// Lower bounds of the distances of one vector of candidates, from those of a place that is at most
// `drift` away.
HWY_INLINE V LowerBounds(const NearestSearch& search, size_t first) {
  const D d;
  const V known = hn::LoadU(d, search.key_distances + first);
  if (search.drift == 0) return known;
  // The root is rounded down, as the difference may be small.
  const V root = hn::Mul(hn::Sqrt(known), hn::Set(d, 1 - 1e-6f));
  const V apart = hn::Max(hn::Zero(d), hn::Sub(root, hn::Set(d, search.drift)));
  return hn::Mul(hn::Mul(apart, apart), hn::Set(d, 1 - kSlack));
}

// The candidate with the lowest lower bound; -1 if none is finite. Starting with it rules most
// others out without reading their values.
template <bool kVaries>
int32_t LikelyNearest(const NearestSearch& search) {
  const D d;
  const DI di;
  V lowest = hn::Set(d, kInfinity);
  auto at = hn::Set(di, -1);
  for (size_t b = 0; b < search.blocks.size(); ++b) {
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const size_t first = b * kBlockSlots + static_cast<size_t>(s);
      // Beyond the drift lower bounds rise with key_distances, so these are compared instead.
      const V distance =
          AddVariances<kVaries>(search, first, hn::LoadU(d, search.key_distances + first));
      const M nearer = hn::And(Candidates(di, hn::LoadU(di, search.blocks[b].partners + s)),
                               hn::Lt(distance, lowest));
      lowest = hn::IfThenElse(nearer, distance, lowest);
      at =
          hn::IfThenElse(hn::RebindMask(di, nearer), hn::Iota(di, static_cast<int32_t>(first)), at);
    }
  }
  float distances[kLanes];
  int32_t candidates[kLanes];
  hn::StoreU(lowest, d, distances);
  hn::StoreU(at, di, candidates);
  int lane = 0;
  for (int i = 1; i < kLanes; ++i) lane = distances[i] < distances[lane] ? i : lane;
  return candidates[lane];
}

template <class T, bool kVaries>
class Search {
 public:
  explicit Search(const NearestSearch& search) : search_(search) {}

  Nearest Find() {
    const int32_t seed = LikelyNearest<kVaries>(search_);
    if (seed >= 0) {
      seeds_ = seed / kLanes * kLanes;
      hn::StoreU(ExactKeyDistances<T>(search_, static_cast<size_t>(seeds_)), D(), of_seeds_);
      Consider(Distance<T, kVaries>(search_, seed, of_seeds_[seed % kLanes]), seed);
    }
    const size_t n = search_.blocks.size();
    for (size_t b = 0; b < n; ++b) {
      if (search_.key == nullptr && b + 1 < n) PrefetchValues(b + 1);
      for (int s = 0; s < kBlockSlots; s += kLanes) VisitCandidates(b, s);
    }
    return nearest_;
  }

 private:
  uint32_t Oldest(int32_t i) const {
    return search_.blocks[static_cast<size_t>(i) / kBlockSlots].oldest[i % kBlockSlots];
  }
  HWY_INLINE void Consider(float distance, int32_t i) {
    if (distance < nearest_.distance || (distance == nearest_.distance && nearest_.candidate >= 0 &&
                                         Oldest(i) < Oldest(nearest_.candidate))) {
      nearest_ = {distance, i};
      SetLimit();
    }
  }
  // Largest key_distances of a candidate that can still be nearest, so that most candidates are
  // skipped without a square root: the inverse of LowerBounds, rounded up.
  HWY_INLINE void SetLimit() {
    limit_ = nearest_.distance;
    if (search_.drift == 0) return;
    const double root = std::sqrt(nearest_.distance / (1.0 - kSlack)) + search_.drift;
    limit_ = static_cast<float>(root * root * (1 + 1e-5));
  }

  // Marks the candidates of one vector whose lower bounds are near enough.
  HWY_INLINE M Near(size_t first, hn::Vec<DI> partners) const {
    const D d;
    M near;
    if constexpr (kVaries) {
      near = hn::Le(AddVariances<kVaries>(search_, first, LowerBounds(search_, first)),
                    hn::Set(d, nearest_.distance));
    } else {
      near = hn::Le(hn::LoadU(d, search_.key_distances + first), hn::Set(d, limit_));
    }
    return hn::And(Candidates(DI(), partners), near);
  }

  // Prefetches the values of a block's candidates whose keys may be near enough: with nothing but
  // key distances known these are many, and each lies elsewhere.
  HWY_INLINE void PrefetchValues(size_t b) const {
    const D d;
    const DI di;
    const CandidateBlock& block = search_.blocks[b];
    const auto* const values = static_cast<const T*>(block.values);
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const M near =
          Near(b * kBlockSlots + static_cast<size_t>(s), hn::LoadU(di, block.partners + s));
      if (hn::AllFalse(d, near)) continue;
      uint8_t bits[8] = {};
      hn::StoreMaskBits(d, near, bits);
      for (int i = 0; i < kLanes; ++i) {
        if ((bits[i / 8] >> i % 8 & 1) == 0) continue;
        PrefetchToL2(ValueRow(values, search_.value_stride, s + i).data,
                     search_.value_stride * static_cast<int64_t>(sizeof(T)));
      }
    }
  }

  // Visits one vector of candidates.
  HWY_INLINE void VisitCandidates(size_t b, int s) {
    const D d;
    const DI di;
    const CandidateBlock& block = search_.blocks[b];
    const auto first = static_cast<int32_t>(b * kBlockSlots) + s;
    const auto partners = hn::LoadU(di, block.partners + s);
    const auto lost = hn::Or(hn::Eq(partners, hn::Set(di, search_.gone[0] + 1)),
                             hn::Eq(partners, hn::Set(di, search_.gone[1] + 1)));
    const M candidates = Candidates(di, partners),
            is_lost = hn::And(candidates, hn::RebindMask(d, lost));
    const auto at = static_cast<size_t>(first);
    const bool none_is_near = hn::AllFalse(d, Near(at, partners));
    if (none_is_near && hn::AllFalse(d, is_lost)) return;
    float keys[kLanes], lower_bound[kLanes];
    const V of_keys = none_is_near      ? hn::Set(d, kInfinity)
                      : first == seeds_ ? hn::LoadU(d, of_seeds_)
                                        : ExactKeyDistances<T>(search_, at);
    hn::StoreU(of_keys, d, keys);
    const V lower = none_is_near ? of_keys : hn::Max(LowerBounds(search_, at), of_keys);
    hn::StoreU(AddVariances<kVaries>(search_, at, lower), d, lower_bound);
    for (int i = 0; i < kLanes; ++i) VisitCandidate(block, first + i, keys[i], lower_bound[i]);
  }

  void VisitCandidate(const CandidateBlock& block, int32_t i, float key_distance,
                      float lower_bound) {
    const int slot = i % kBlockSlots;
    int32_t& partner = block.partners[slot];
    float& bound = block.bounds[slot];
    if (partner == 0) return;
    const bool is_lost = partner == search_.gone[0] + 1 || partner == search_.gone[1] + 1;
    if (is_lost) partner = kStalePartner;
    if (!(lower_bound <= nearest_.distance)) return;
    const float distance = Distance<T, kVaries>(search_, i, key_distance);
    Consider(distance, i);
    if (distance == 0 && partner == kStalePartner && (is_lost || bound > 0)) {
      bound = 0;
      partner = search_.self + 1;
    }
  }

  const NearestSearch& search_;
  Nearest nearest_ = {kInfinity, -1};
  float limit_ = kInfinity;  // set by SetLimit
  int32_t seeds_ = -1;       // first candidate of the vector visited first
  float of_seeds_[kLanes];   // key distances of that vector
};

Nearest FindNearest(const NearestSearch& search) {
  return VisitSlots(search.dtype, [&]<class T>(Slots<T>) {
    return search.variances == nullptr ? Search<T, false>(search).Find()
                                       : Search<T, true>(search).Find();
  });
}

int NearestOnes(std::span<const CandidateBlock> blocks, const float* distances,
                std::span<Nearest> lowest) {
  const D d;
  const DI di;
  size_t n = 0;
  float limit = kInfinity;
  for (size_t b = 0; b < blocks.size(); ++b, distances += kBlockSlots) {
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const M alive = Candidates(di, hn::LoadU(di, blocks[b].partners + s));
      const M near = hn::Lt(hn::LoadU(d, distances + s), hn::Set(d, limit));
      if (hn::AllFalse(d, hn::And(near, alive))) continue;
      for (int t = s; t < s + kLanes; ++t) {
        const float distance = distances[t];
        if (blocks[b].partners[t] == 0 || !(distance < limit)) continue;
        size_t at = n < lowest.size() ? n++ : n - 1;
        for (; at > 0 && distance < lowest[at - 1].distance; --at) lowest[at] = lowest[at - 1];
        lowest[at] = {distance, static_cast<int32_t>(b * kBlockSlots) + t};
        if (n == lowest.size()) limit = lowest[n - 1].distance;
      }
    }
  }
  return static_cast<int>(n);
}

PairBound LowestBound(std::span<const CandidateBlock> blocks) {
  const D d;
  const DI di;
  const auto oldest = [&](int32_t i) {
    return blocks[static_cast<size_t>(i) / kBlockSlots].oldest[i % kBlockSlots];
  };
  unsigned long long lowest_order = 0;
  PairBound lowest = {kInfinity, -1, -1};
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (int s = 0; s < kBlockSlots; s += kLanes) {
      const V bounds = hn::LoadU(d, blocks[b].bounds + s);
      const M alive = Candidates(di, hn::LoadU(di, blocks[b].partners + s));
      const M open = hn::And(alive, hn::Le(bounds, hn::Set(d, lowest.bound)));
      if (hn::AllFalse(d, open)) continue;
      for (int t = s; t < s + kLanes; ++t) {
        const float bound = blocks[b].bounds[t];
        if (blocks[b].partners[t] == 0 || !(bound <= lowest.bound) || !(bound < kInfinity))
          continue;
        const auto i = static_cast<int32_t>(b * kBlockSlots) + t;
        const int32_t partner = blocks[b].partners[t] - 1;
        const unsigned long long order = partner < 0 ? 0 : PairOrder(oldest(i), oldest(partner));
        if (bound == lowest.bound && order >= lowest_order) continue;
        const bool is_low = partner >= 0 && oldest(i) < oldest(partner);
        lowest = {bound, is_low ? i : std::max(partner, -1), is_low ? partner : i};
        lowest_order = order;
      }
    }
  }
  return lowest;
}

constexpr int kRowTile = 4;
// The accumulators must fit the register file: 32 registers with 64-byte vectors, else 16.
constexpr int kVectors = kLanes == 16 ? 4 : 2;

// A block's keys to prefetch, channel by channel.
struct KeysAhead {
  const char* keys;  // null: none
  int64_t channel_bytes;
};

// Distances of kRows keys to one block.
template <int kRows, bool kAhead, class T>
HWY_INLINE void TileKeyDistances(const float* const* rows, const T* keys, int head_dim,
                                 float* const* distances, size_t at, const KeysAhead& ahead) {
  const D d;
  // One key hides the latency of a fused multiply-add behind all slots.
  constexpr int kWide = kRows == 1 ? kBlockSlots / kLanes : kVectors;
  for (int s = 0; s < kBlockSlots; s += kWide * kLanes) {
    V sum[kRows][kWide];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kWide; ++v) sum[r][v] = hn::Zero(d);
    }
    for (int i = 0; i < head_dim; ++i) {
      if (kAhead && s == 0) {
        PrefetchToL2(ahead.keys + i * ahead.channel_bytes, ahead.channel_bytes);
      }
      const T* HWY_RESTRICT channel = keys + static_cast<size_t>(i) * kBlockSlots + s;
      V key[kWide];
      for (int v = 0; v < kWide; ++v) key[v] = LoadWide(d, channel + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const V x = hn::Set(d, rows[r][i]);
        for (int v = 0; v < kWide; ++v) {
          const V apart = hn::Sub(x, key[v]);
          sum[r][v] = hn::MulAdd(apart, apart, sum[r][v]);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kWide; ++v) hn::StoreU(sum[r][v], d, distances[r] + at + s + v * kLanes);
    }
  }
}

// The first tile of rows prefetches.
template <class T>
HWY_INLINE void BlockKeyDistances(const KeyDistances& batch, const T* keys, size_t at,
                                  const KeysAhead& ahead) {
  const auto n = static_cast<int>(batch.keys.size());
  int r = 0;
  const auto tile = [&]<int kRows>(std::integral_constant<int, kRows>) HWY_ATTR {
    const auto run = [&]<bool kAhead>(std::bool_constant<kAhead>) HWY_ATTR {
      TileKeyDistances<kRows, kAhead>(batch.keys.data() + r, keys, batch.head_dim,
                                      batch.distances.data() + r, at, ahead);
    };
    ahead.keys != nullptr&& r == 0 ? run(std::true_type()) : run(std::false_type());
    r += kRows;
  };
  while (r + kRowTile <= n) tile(std::integral_constant<int, kRowTile>());
  while (r < n) tile(std::integral_constant<int, 1>());
}

// Converts a block to float: every slot's channels times its scale.
template <class T>
HWY_INLINE void WidenBlock(const T* keys, int head_dim, float* wide) {
  const D d;
  for (int s = 0; s < kBlockSlots; s += kLanes) {
    [[maybe_unused]] V scale;
    if constexpr (Slots<T>::kScaled) scale = LoadScales(d, keys, head_dim, s);
    for (auto i = static_cast<size_t>(s); i < static_cast<size_t>(head_dim) * kBlockSlots;
         i += kBlockSlots) {
      V channel = LoadWide(d, keys + i);
      if constexpr (Slots<T>::kScaled) channel = hn::Mul(channel, scale);
      hn::StoreU(channel, d, wide + i);
    }
  }
}

void FillKeyDistances(const KeyDistances& batch) {
  VisitSlots(batch.dtype, [&]<class T>(Slots<T>) HWY_ATTR {
    const bool widens =
        Slots<T>::kScaled || (sizeof(T) < sizeof(float) && batch.keys.size() > kRowTile);
    for (size_t b = 0; b < batch.blocks.size(); ++b) {
      const T* keys = static_cast<const T*>(batch.blocks[b].keys);
      const void* const next = b + 1 < batch.blocks.size() ? batch.blocks[b + 1].keys : nullptr;
      const KeysAhead ahead = {static_cast<const char*>(next), kBlockSlots * sizeof(T)};
      if (widens) {
        WidenBlock(keys, batch.head_dim, batch.wide);
        BlockKeyDistances(batch, static_cast<const float*>(batch.wide), b * kBlockSlots, ahead);
      } else {
        BlockKeyDistances(batch, keys, b * kBlockSlots, ahead);
      }
    }
  });
}

float SquaredNorm(const void* value, DType dtype, int value_stride) {
  return VisitSlots(dtype, [&]<class T>(Slots<T>) HWY_ATTR {
    return ValueDistance(nullptr, static_cast<const T*>(value), value_stride);
  });
}

}  // namespace
}  // namespace ovq::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ovq::kernels {

HWY_EXPORT(FillKeyDistances);
HWY_EXPORT(FindNearest);
HWY_EXPORT(LowestBound);
HWY_EXPORT(NearestOnes);
HWY_EXPORT(SquaredNorm);

void KeyDistancesCpu(const KeyDistances& batch) { HWY_DYNAMIC_DISPATCH(FillKeyDistances)(batch); }

Nearest FindNearestCpu(const NearestSearch& search) {
  return HWY_DYNAMIC_DISPATCH(FindNearest)(search);
}

PairBound LowestBoundCpu(std::span<const CandidateBlock> blocks) {
  return HWY_DYNAMIC_DISPATCH(LowestBound)(blocks);
}

int NearestOnesCpu(std::span<const CandidateBlock> blocks, const float* distances,
                   std::span<Nearest> lowest) {
  return HWY_DYNAMIC_DISPATCH(NearestOnes)(blocks, distances, lowest);
}

float SquaredNormCpu(const void* value, DType dtype, int value_stride) {
  return HWY_DYNAMIC_DISPATCH(SquaredNorm)(value, dtype, value_stride);
}

}  // namespace ovq::kernels
#endif  // HWY_ONCE
