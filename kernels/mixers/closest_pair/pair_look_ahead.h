// Look-ahead on the CPU: computes distances of tokens before they join and of means before they are
// made, while the tokens of one chunk pass. Wrong guesses are dropped; no result depends on them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/mixers/closest_pair/pair_pass.h"

namespace ovq {

static_assert(kMaxJoinsAhead <= kMaxLowerBoundRows);

template <class T>
class PairLookAhead {
 public:
  explicit PairLookAhead(const PairPass<T>& pass)
      : pass_(pass), at_(pass.at), chunk_(pass.chunk), buffers_(pass.buffers) {}

  // Starts a pass of n_tokens tokens. Cached distances depend on w K / V, so call it again after
  // that
  // changes.
  void Begin(int64_t n_tokens) {
    buffers_.joins.Clear();
    buffers_.means.Clear();
    for (RunningMean& running : buffers_.running) running.mean = -1;
    uses_lower_bounds_ =
        std::is_same_v<T, BF16> && n_tokens >= kMinLowerBoundTokens && HasDistanceLowerBounds();
    if (pass_.merges || uses_lower_bounds_) {
      ValueSizesCpu(pass_.Blocks(), at_.blocks.dtype, ValueStride(at_.dv()), buffers_.sizes);
    }
    if (!uses_lower_bounds_) return;
    FillSquares();
    PackCandidatesCpu(pass_.SlotsAndTokens(), at_.d(), ValueStride(at_.dv()), buffers_.packed);
  }

  // Distances of `candidate`, token i's, computed together with those of later tokens up to `end`.
  const LookAhead& FindOrComputeJoin(int32_t candidate, int64_t i, int64_t end) {
    const Pair alone = {-1, candidate};
    if (const LookAhead* known = buffers_.joins.Find(alone)) return *known;
    end = std::min<int64_t>(end, i + kMaxJoinsAhead);
    Request(buffers_.joins, alone);
    for (int64_t next = i + 1; next < end; ++next) {
      const int32_t joins = pass_.FindCandidate(next);
      if (joins >= 0) Request(buffers_.joins, {-1, joins});
    }
    if (end - i <= 2) RequestMerges(kMaxMergesAhead);
    Compute();
    return *buffers_.joins.Find(alone);
  }

  // Distances of a pair's mean, or of a stale candidate.
  LookAhead& FindOrComputeMean(const Pair& pair) {
    if (LookAhead* known = buffers_.means.Find(pair)) {
      ++n_hits_;
      return *known;
    }
    // The look-ahead doubles if at least half of the last one was used, and halves otherwise.
    max_ahead_ = 2 * n_hits_ >= n_ahead_ ? std::min(2 * max_ahead_, kMaxMergesAhead)
                                         : std::max(max_ahead_ / 2, 1);
    Request(buffers_.means, pair);
    RequestMerges(max_ahead_);
    n_hits_ = 0;
    n_ahead_ = n_pending_ - 1;
    Compute();
    return *buffers_.means.Find(pair);
  }
  // The running mean in this pair, if the other candidate is a slot or a token; else null.
  RunningMean* FindRunningMean(const Pair& pair) {
    for (auto it = buffers_.running.begin(); it != buffers_.running.end(); ++it) {
      if (it->mean < 0 || (it->mean != pair.low && it->mean != pair.high)) continue;
      if (pair.low + pair.high - it->mean >= chunk_.first_merged()) continue;
      std::rotate(buffers_.running.begin(), it, it + 1);
      return &buffers_.running.front();
    }
    return nullptr;
  }
  // Tracks a new mean; takes over its distances if they are lower bounds.
  void AddRunningMean(int32_t mean, LookAhead& ahead) {
    if (!ahead.is_lower_bound) return;
    auto& list = buffers_.running;
    std::rotate(list.begin(), list.end() - 1, list.end());
    std::swap(list.front().lower_bounds, ahead.distances);
    list.front().mean = mean;
    std::copy_n(ahead.key, at_.d(), list.front().place);
    std::copy_n(ahead.value, at_.dv(), list.front().place + at_.d());
    ahead.of = {-1, -1};
  }
  // Moves a running mean to the mean of the pair, and leaves the rounded mean in
  // buffers_.rounded_mean.
  void AdvanceRunningMean(RunningMean& running, const Pair& pair) {
    const int32_t other = pair.low + pair.high - running.mean;
    const LookAhead& met = FindOrComputeCandidate(other, running);
    const float high = HighShare(at_.Count(pair.low), at_.Count(pair.high)),
                share = running.mean == pair.low ? high : 1 - high;
    const double apart = DistanceRoundedUp(met, running);
    MoveLowerBoundsCpu(met.distances, share, static_cast<float>(apart * apart),
                       {running.lower_bounds, pass_.SlotsAndTokens().size() * kBlockSlots});
    for (int c = 0; c < at_.d(); ++c) {
      running.place[c] += double{share} * (met.key[c] - running.place[c]);
    }
    double* value = running.place + at_.d();
    for (int c = 0; c < at_.dv(); ++c) value[c] += double{share} * (met.value[c] - value[c]);
    MakeMean(pair, buffers_.rounded_mean);
  }
  // Distance (not squared) of the two places, rounded up.
  double DistanceRoundedUp(const LookAhead& x, const RunningMean& y) const {
    double keys = 0, values = 0;
    const auto square = [](double a, double b) { return (a - b) * (a - b); };
    for (int c = 0; c < at_.d(); ++c) keys += square(x.key[c], y.place[c]);
    for (int c = 0; c < at_.dv(); ++c) values += square(x.value[c], y.place[at_.d() + c]);
    return std::sqrt(keys + at_.ValueScale() * values) * 1.00001;
  }

 private:
  // |key|^2 and the value sizes of all slots and tokens.
  void FillSquares() const {
    std::fill_n(buffers_.other, at_.d(), 0.0f);
    const float* zero = buffers_.other;
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.SlotsAndTokens(),
                     .keys = {&zero, 1},
                     .distances = {&buffers_.squares, 1},
                     .wide = buffers_.wide});
    const float scale = at_.ValueScale();
    for (size_t i = 0; i < pass_.SlotsAndTokens().size() * kBlockSlots; ++i) {
      buffers_.squares[i] += scale * buffers_.sizes[i] * buffers_.sizes[i];
    }
  }

  // Enters a key and a value into the ring; Compute() adds the distances.
  void Request(LookAheadRing& ring, const Pair& pair) {
    LookAhead& ahead = ring.ReplaceOldest(pair);
    pending_[n_pending_++] = &ahead;
    pair.low < 0 ? Load(pair.high, ahead) : MakeMean(pair, ahead);
  }
  void MakeMean(const Pair& pair, const LookAhead& ahead) const {
    const float share = HighShare(at_.Count(pair.low), at_.Count(pair.high));
    Mean(at_.KeySlot(pair.low), at_.KeySlot(pair.high), at_.d(), share,
         at_.Rounding(pair.high, /*is_value=*/false), ahead.key);
    Mean(at_.ValueSlot(pair.low), at_.ValueSlot(pair.high), at_.dv(), share,
         at_.Rounding(pair.high, /*is_value=*/true), ahead.value);
  }
  // A candidate's key and value.
  void Load(int32_t i, const LookAhead& ahead) const {
    at_.KeySlot(i).Load(at_.d(), ahead.key);
    at_.ValueSlot(i).Load(at_.dv(), ahead.value);
  }
  // The mean, rounded as it will be stored.
  void Mean(const SlotRow<T>& low, const SlotRow<T>& high, int n, float share,
            const RoundingKey& key, float* mean) const {
    low.Load(n, mean);
    high.Load(n, buffers_.other);
    for (int c = 0; c < n; ++c) {
      buffers_.other[c] = WeightedMean(mean[c], buffers_.other[c], share);
    }
    T exponent = {};
    const SlotRow<T> rounded = {static_cast<T*>(buffers_.rounded), 1, &exponent};
    RoundRow(buffers_.other, n, key, rounded);
    rounded.Load(n, mean);
  }

  // Requests the pairs and stale candidates that this pass will probably merge or renew.
  void RequestMerges(int most) {
    const int64_t left = chunk_.MergedAt(pass_.end) - pass_.n_means;
    if (left <= 0) return;
    std::array<Nearest, kCachedMeans> lowest;
    const auto n = std::min<int64_t>({left, kCachedMeans, std::ssize(buffers_.means.list)});
    const int found = LowestBoundsCpu(pass_.Blocks(), {lowest.data(), static_cast<size_t>(n)});
    for (int i = 0; i < found && n_pending_ < most; ++i) {
      Pair pair = PairWithPartner(lowest[i].candidate);
      const auto excludes = [&](const LookAhead* other) { return other->of.Excludes(pair); };
      if (std::any_of(pending_.begin(), pending_.begin() + n_pending_, excludes)) {
        pair = {-1, lowest[i].candidate};
      }
      if (buffers_.means.Find(pair) == nullptr) Request(buffers_.means, pair);
    }
  }
  Pair PairWithPartner(int32_t i) const {
    const int32_t partner = at_.Partner(i) - 1;
    if (partner < 0) return {-1, i};
    return at_.Oldest(i) < at_.Oldest(partner) ? Pair{i, partner} : Pair{partner, i};
  }

  // Computes the distances of all requests to slots and tokens, which do not change in this pass.
  void Compute() {
    for (int i = 0; i < n_pending_; ++i) pending_[i]->is_lower_bound = uses_lower_bounds_;
    if (uses_lower_bounds_) {
      std::array<DistanceLowerBounds::Query, kMaxJoinsAhead> rows;
      for (int i = 0; i < n_pending_; ++i) {
        rows[i] = {pending_[i]->key, pending_[i]->value, pending_[i]->distances};
      }
      DistanceLowerBoundsCpu({.head_dim = at_.d(),
                              .value_stride = ValueStride(at_.dv()),
                              .n_blocks = pass_.SlotsAndTokens().size(),
                              .packed = buffers_.packed,
                              .squares = buffers_.squares,
                              .value_scale = at_.ValueScale(),
                              .rows = std::span(rows).first(static_cast<size_t>(n_pending_)),
                              .scratch = buffers_.pairs});
      n_pending_ = 0;
      return;
    }
    std::array<const float*, kMaxJoinsAhead> keys;
    std::array<float*, kMaxJoinsAhead> distances;
    for (int i = 0; i < n_pending_; ++i) {
      keys[i] = pending_[i]->key;
      distances[i] = pending_[i]->distances;
    }
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.SlotsAndTokens(),
                     .keys = std::span(keys).first(static_cast<size_t>(n_pending_)),
                     .distances = std::span(distances).first(static_cast<size_t>(n_pending_)),
                     .wide = buffers_.wide});
    n_pending_ = 0;
  }

  // Distances of a slot or a token, computed together with those of the candidates that the running
  // mean will probably merge with next.
  const LookAhead& FindOrComputeCandidate(int32_t i, const RunningMean& running) {
    const Pair alone = {-1, i};
    if (const LookAhead* known = buffers_.joins.Find(alone)) return *known;
    if (const LookAhead* known = buffers_.means.Find(alone)) return *known;
    Request(buffers_.means, alone);
    std::array<Nearest, 2 * kMaxMergesAhead> nearest;
    const std::span<const CandidateBlock> blocks = pass_.SlotsAndTokens();
    for (size_t b = 0; b < blocks.size(); ++b) {
      buffers_.lower_bound_blocks[b] = blocks[b];
      buffers_.lower_bound_blocks[b].bounds = running.lower_bounds + b * kBlockSlots;
    }
    const int n = LowestBoundsCpu({buffers_.lower_bound_blocks, blocks.size()}, nearest);
    for (int k = 0; k < n && n_pending_ < kMaxMergesAhead; ++k) {
      const Pair next = {-1, nearest[k].candidate};
      if (buffers_.joins.Find(next) == nullptr && buffers_.means.Find(next) == nullptr) {
        Request(buffers_.means, next);
      }
    }
    Compute();
    return *buffers_.means.Find(alone);
  }

  const PairPass<T>& pass_;
  const PairBlocks<T>& at_;
  const PairChunk& chunk_;
  PairBuffers& buffers_;
  bool uses_lower_bounds_ = false;
  int n_ahead_ = 0, n_hits_ = 0, max_ahead_ = kMaxMergesAhead;
  std::array<LookAhead*, kMaxJoinsAhead> pending_;
  int n_pending_ = 0;
};

}  // namespace ovq
