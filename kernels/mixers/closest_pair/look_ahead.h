// Distances of candidates on the CPU, many of them computed before they are needed: slots and
// tokens do not change while a chunk passes. Wrong guesses are dropped; no result depends on them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/mixers/closest_pair/pair_pass.h"

namespace ovq::kernels {

// Largest number of candidates whose distances are computed in one pass over the slots: tokens that
// will join, and candidates that a running mean will meet.
inline constexpr int kMaxJoinsAhead = 16, kMaxMergesAhead = 8;
static_assert(kMaxJoinsAhead <= kMaxLowerBoundQueries);
static_assert(kMaxMergesAhead <= 2 * kMinLowerBoundTokens);  // the entries of the smallest cache

template <class T>
class LookAhead {
 public:
  explicit LookAhead(const PairPass<T>& pass)
      : pass_(pass), at_(pass.at), chunk_(pass.chunk), buffers_(pass.buffers) {}

  // Starts a pass. Lower bounds depend on w K / V, so call it again after that changes.
  void Begin() {
    buffers_.cache.Clear();
    for (RunningMean& running : buffers_.running) running.mean = -1;
    uses_lower_bounds_ = std::is_same_v<T, BF16> &&
                         pass_.end - pass_.begin >= kMinLowerBoundTokens &&
                         HasDistanceLowerBounds();
    if (uses_lower_bounds_) PackCandidatesCpu(pass_.SlotsAndTokens(), Packed());
  }
  bool uses_lower_bounds() const { return uses_lower_bounds_; }

  // Distances of `candidate`, token i's, computed together with those of later tokens up to `end`.
  const KnownDistances& FindOrComputeJoin(int32_t candidate, int64_t i, int64_t end) {
    if (const KnownDistances* known = buffers_.cache.Find(candidate)) return *known;
    const KnownDistances& joins = Request(candidate);
    end = std::min<int64_t>(end, i + kMaxJoinsAhead);
    while (++i < end) {
      const int32_t next = pass_.FindCandidate(i);
      if (next >= 0) Request(next);
    }
    Compute();
    return joins;
  }
  // Distances of a candidate that has joined.
  const KnownDistances& FindOrCompute(int32_t candidate) {
    if (const KnownDistances* known = buffers_.cache.Find(candidate)) return *known;
    const KnownDistances& requested = Request(candidate);
    Compute();
    return requested;
  }

  // Makes the pair's mean in buffers.mean, with its distances unless it is a running mean. Returns
  // the running mean, which has moved to the new place, or null.
  RunningMean* MakeMean(const Pair& pair) {
    RunningMean* running = FindRunningMean(pair);
    if (running != nullptr) Advance(*running, pair);
    const float share = HighShare(at_.Count(pair.low), at_.Count(pair.high));
    Mean(KeyChannels(pair.low), KeyChannels(pair.high), at_.d(), share,
         at_.Rounding(pair.high, /*is_value=*/false), buffers_.mean.key);
    Mean(ValueChannels(pair.low), ValueChannels(pair.high), at_.dv(), share,
         at_.Rounding(pair.high, /*is_value=*/true), buffers_.mean.value);
    if (running == nullptr) {
      pending_[n_pending_++] = &buffers_.mean;
      Compute();
    }
    return running;
  }
  // Tracks buffers.mean, which is candidate `mean` now, and takes over its lower bounds.
  void AddRunningMean(int32_t mean) {
    if (!uses_lower_bounds_) return;
    auto& list = buffers_.running;
    std::rotate(list.begin(), list.end() - 1, list.end());
    std::swap(list.front().lower_bounds, buffers_.mean.distances);
    list.front().mean = mean;
    std::copy_n(buffers_.mean.key, at_.d(), list.front().place);
    std::copy_n(buffers_.mean.value, at_.dv(), list.front().place + at_.d());
  }
  // Distance (not squared) of the two places, rounded up.
  double DistanceRoundedUp(const KnownDistances& x, const RunningMean& y) const {
    double keys = 0, values = 0;
    const auto square = [](double a, double b) { return (a - b) * (a - b); };
    for (int c = 0; c < at_.d(); ++c) keys += square(x.key[c], y.place[c]);
    for (int c = 0; c < at_.dv(); ++c) values += square(x.value[c], y.place[at_.d() + c]);
    return std::sqrt(keys + at_.ValueScale() * values) * 1.00001;
  }

 private:
  // Channels of a candidate's key or value.
  struct Channels {
    const T* data;
    ptrdiff_t stride;  // between channels
    float scale;
    float operator[](int c) const { return ToFloat(data[c * stride]) * scale; }
  };
  Channels KeyChannels(int32_t i) const {
    return {at_.Key(i), kBlockSlots, at_.KeySlot(i).scale()};
  }
  Channels ValueChannels(int32_t i) const { return {at_.Value(i), 1, at_.ValueSlot(i).scale()}; }

  // The mean, rounded as it will be stored.
  void Mean(const Channels& low, const Channels& high, int n, float share, const RoundingKey& key,
            float* mean) const {
    for (int c = 0; c < n; ++c) buffers_.exact[c] = WeightedMean(low[c], high[c], share);
    T exponent = {};
    const SlotRow<T> rounded = {static_cast<T*>(buffers_.rounded), 1, &exponent};
    RoundRow(buffers_.exact, n, key, rounded);
    rounded.Load(n, mean);
  }

  PackedCandidates Packed() const {
    return {.head_dim = at_.d(),
            .value_stride = ValueStride(at_.dv()),
            .value_scale = at_.ValueScale(),
            .n_blocks = pass_.SlotsAndTokens().size(),
            .pairs = buffers_.packed,
            .squares = buffers_.squares};
  }

  // Enters a candidate's key and value into the cache; Compute() adds the distances.
  const KnownDistances& Request(int32_t candidate) {
    KnownDistances& known = buffers_.cache.ReplaceOldest(candidate);
    const Channels key = KeyChannels(candidate), value = ValueChannels(candidate);
    for (int c = 0; c < at_.d(); ++c) known.key[c] = key[c];
    for (int c = 0; c < at_.dv(); ++c) known.value[c] = value[c];
    return *(pending_[n_pending_++] = &known);
  }
  // Computes the distances of all requests to slots and tokens.
  void Compute() {
    const auto n = static_cast<size_t>(n_pending_);
    n_pending_ = 0;
    if (uses_lower_bounds_) {
      std::array<LowerBoundQuery, kMaxJoinsAhead> queries;
      for (size_t i = 0; i < n; ++i) {
        queries[i] = {pending_[i]->key, pending_[i]->value, pending_[i]->distances};
      }
      return DistanceLowerBoundsCpu(Packed(), std::span(queries).first(n), buffers_.queries);
    }
    std::array<const float*, kMaxJoinsAhead> keys;
    std::array<float*, kMaxJoinsAhead> distances;
    for (size_t i = 0; i < n; ++i) {
      keys[i] = pending_[i]->key;
      distances[i] = pending_[i]->distances;
    }
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.SlotsAndTokens(),
                     .keys = std::span(keys).first(n),
                     .distances = std::span(distances).first(n),
                     .wide = buffers_.wide});
  }

  // The running mean in this pair, if the other candidate is a slot or a token; else null.
  RunningMean* FindRunningMean(const Pair& pair) {
    for (auto it = buffers_.running.begin(); it != buffers_.running.end(); ++it) {
      if (it->mean < 0 || (it->mean != pair.low && it->mean != pair.high)) continue;
      if (pair.Other(it->mean) >= chunk_.first_merged()) continue;
      std::rotate(buffers_.running.begin(), it, it + 1);
      return &buffers_.running.front();
    }
    return nullptr;
  }
  // Moves a running mean to the mean of the pair.
  void Advance(RunningMean& running, const Pair& pair) {
    const KnownDistances& met = FindOrComputeNext(pair.Other(running.mean), running);
    const float high = HighShare(at_.Count(pair.low), at_.Count(pair.high)),
                share = running.mean == pair.low ? high : 1 - high;
    const double apart = DistanceRoundedUp(met, running);
    MoveLowerBoundsCpu(met.distances, share, static_cast<float>(apart * apart),
                       {running.lower_bounds, pass_.SlotsAndTokens().size() * kBlockSlots});
    const auto move = [&](double* place, const float* to, int n) {
      for (int c = 0; c < n; ++c) place[c] += double{share} * (to[c] - place[c]);
    };
    move(running.place, met.key, at_.d());
    move(running.place + at_.d(), met.value, at_.dv());
  }
  // Distances of a slot or a token that the running mean meets, computed together with those of the
  // candidates that it will probably meet next.
  const KnownDistances& FindOrComputeNext(int32_t candidate, const RunningMean& running) {
    if (const KnownDistances* known = buffers_.cache.Find(candidate)) return *known;
    const KnownDistances& met = Request(candidate);
    std::array<Nearest, 2 * kMaxMergesAhead> nearest;
    const int n = NearestOnesCpu(pass_.SlotsAndTokens(), running.lower_bounds, nearest);
    for (int k = 0; k < n && n_pending_ < kMaxMergesAhead; ++k) {
      const int32_t next = nearest[k].candidate;
      if (buffers_.cache.Find(next) == nullptr) Request(next);
    }
    Compute();
    return met;
  }

  const PairPass<T>& pass_;
  const PairBlocks<T>& at_;
  const PairChunk& chunk_;
  PairBuffers& buffers_;
  bool uses_lower_bounds_ = false;
  std::array<KnownDistances*, kMaxJoinsAhead> pending_;
  int n_pending_ = 0;
};

}  // namespace ovq::kernels
