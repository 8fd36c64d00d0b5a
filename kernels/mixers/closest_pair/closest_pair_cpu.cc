// Closest-pair attention on the CPU. Of one head, with rows (Dk, Dv, counts c) and the chunk's own
// keys K and values V up to t:
//   o_t = softmax([q_t Dk^T + ln c | q_t K^T]) [Dv | V]
// and, in the thread that attended, what the token's position brings: a candidate joins, the
// closest pairs (i, j) with counts a, b become (a row_i + b row_j) / (a + b).
// A candidate meets all others when it joins, and again if it comes to the top without a partner.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/mixers/closest_pair/ahead.h"
#include "kernels/mixers/closest_pair/candidates.h"
#include "kernels/mixers/closest_pair/nearest.h"

namespace ovq {
namespace {

// One thread's.
struct Buffers {
  CandidateBlock* blocks;  // [blocks of rows and 2 of work]
  AheadRing joins, means;
  void* rounded;     // [max(head_dim, value_head_dim)] in the state's dtype
  float* other;      // the same in float
  float* wide;       // [head_dim][64]
  float* sizes;      // [blocks][64]
  int32_t* slot_of;  // [candidates of the work blocks]
};

size_t MostSlots(const ClosestPairStep& step) {
  return static_cast<size_t>(BlocksOf(step.blocks.live.bound) +
                             2 * BlocksOf(step.blocks.wave_span)) *
         kBlockSlots;
}

AheadRing MakeRing(ScratchScope& scope, const ClosestPairStep& step, int n) {
  const AttentionShape& shape = step.blocks.shape;
  const auto value_stride = static_cast<size_t>(ValueStride(shape.value_head_dim));
  const std::span<Ahead> list(scope.Allocate<Ahead>(static_cast<size_t>(n)), n);
  for (Ahead& ahead : list) {
    ahead = {.of = {-1, -1},
             .key = scope.Allocate<float>(static_cast<size_t>(shape.head_dim)),
             .value = scope.Allocate<float>(value_stride),
             .distances = scope.Allocate<float>(MostSlots(step))};
    std::fill_n(ahead.value, value_stride, 0.0f);
  }
  return {list};
}

Buffers MakeBuffers(ScratchScope& scope, const ClosestPairStep& step) {
  const AttentionShape& shape = step.blocks.shape;
  const int64_t work = 2 * BlocksOf(step.blocks.wave_span);
  const auto widest = static_cast<size_t>(std::max(shape.head_dim, shape.value_head_dim));
  return {.blocks = scope.Allocate<CandidateBlock>(MostSlots(step) / kBlockSlots),
          .joins = MakeRing(scope, step, std::min(kJoinsAhead, 2 * step.seqs.longest_run())),
          .means = MakeRing(scope, step, std::min(kMeansKept, 4 * step.seqs.longest_run())),
          .rounded = scope.Allocate<float>(widest),
          .other = scope.Allocate<float>(widest),
          .wide = scope.Allocate<float>(static_cast<size_t>(shape.head_dim) * kBlockSlots),
          .sizes = scope.Allocate<float>(MostSlots(step)),
          .slot_of = scope.Allocate<int32_t>(static_cast<size_t>(work) * kBlockSlots)};
}

template <class T>
class Dictionary {
 public:
  Dictionary(const ClosestPairStep& step, const PairChunk& chunk, Buffers& buffers)
      : at_{step.blocks, step.places, chunk}, chunk_(chunk), buffers_(buffers) {
    for (int32_t b = 0; b < chunk.n_blocks(); ++b) {
      buffers.blocks[b] = {at_.keys(b), at_.values(b), at_.bounds(b), at_.partners(b),
                           at_.oldest(b)};
    }
  }

  // What the tokens [from, to) of the chunk bring, once they have attended.
  void Pass(int64_t from, int64_t to) {
    buffers_.joins.Clear();
    buffers_.means.Clear();
    end_ = to;
    n_means_ = chunk_.MergedAt(from);
    merges_ = chunk_.MergedAt(to) > n_means_;
    if (merges_) ValueSizesCpu(Blocks(), at_.blocks.dtype, ValueStride(at_.dv()), buffers_.sizes);
    const int64_t all_joined = JoinedAt(chunk_.begin + to, chunk_.slot_cap);
    for (int64_t offset = from; offset < to; ++offset) {
      const int64_t position = chunk_.begin + offset;
      for (int64_t i = JoinedAt(position, chunk_.slot_cap);
           i < JoinedAt(position + 1, chunk_.slot_cap); ++i) {
        if (i == 0) FirstSize(static_cast<int32_t>(position + 1));
        Join(i, all_joined);
      }
      for (; n_means_ < chunk_.MergedAt(offset + 1); ++n_means_) {
        if (n_means_ == 0) UpdateSize();
        MergeClosest();
      }
    }
  }

  // The chunk's tokens and merged rows take the places of the rows that are gone, then new ones.
  void EndChunk() {
    FindSlots();
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const int32_t slot = SlotOf(i);
      if (slot >= 0) Move(i, slot);
    }
    for (int32_t slot = 0; slot < chunk_.n_next; ++slot) {
      int32_t& partner = at_.RowPartner(slot);
      if (partner > chunk_.first_token()) partner = SlotOf(partner - 1) + 1;
    }
    for (int32_t b = chunk_.row_blocks(); b < chunk_.n_blocks(); ++b) {
      std::fill_n(at_.partners(b), kBlockSlots, 0);
    }
  }

 private:
  int32_t& SlotOf(int32_t i) const { return buffers_.slot_of[i - chunk_.first_token()]; }

  std::span<const CandidateBlock> Blocks(int64_t begin, int64_t end) const {
    return {buffers_.blocks + begin, static_cast<size_t>(end - begin)};
  }
  std::span<const CandidateBlock> Blocks() const {
    return Blocks(0, chunk_.first_merged() / kBlockSlots + BlocksOf(n_means_));
  }
  double Size(int32_t i) const {
    return SquaredNormCpu(at_.Value(i), at_.blocks.dtype, ValueStride(at_.dv()));
  }

  // value_size() from the candidates of(0) to of(n - 1) that are not below 0.
  template <class Of>
  float SizeOf(int32_t n, Of of) const {
    double values = 0, keys = 0, found = 0;
    for (int32_t i = 0; i < n; ++i) {
      if (of(i) < 0) continue;
      values += Size(of(i));
      keys += at_.KeySize(of(i));
      ++found;
    }
    return at_.SizeOf(values, keys, std::max(found, 1.0));
  }
  // V from the sequence's first n tokens.
  void FirstSize(int32_t n) const {
    at_.value_size() = SizeOf(n, [&](int32_t i) { return chunk_.CandidateOf(i); });
  }

  // V from the candidates, if it is far from theirs: bounds are then no more than that.
  void UpdateSize() const {
    const float size = SizeOf(chunk_.end(), [&](int32_t i) { return at_.Partner(i) ? i : -1; });
    const float old = at_.value_size(), old_scale = at_.ValueScale();
    if (size <= old * kPairSizeChange && old <= size * kPairSizeChange) return;
    at_.value_size() = size;
    const float shrink = ShrinkOfBounds(old_scale, at_.ValueScale());
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      at_.Bound(i) *= shrink;
      at_.Partner(i) = kStalePartner;
    }
  }

  // Key and value, for distances that are due.
  void Request(AheadRing& ring, const Pair& pair) {
    Ahead& ahead = ring.Take(pair);
    pending_[n_pending_++] = &ahead;
    if (pair.low < 0) return Load(pair.high, ahead);
    const float share = ShareOf(at_.Count(pair.low), at_.Count(pair.high));
    Mean(at_.Key(pair.low), at_.Key(pair.high), kBlockSlots, at_.d(), share,
         at_.Rounding(pair.high, /*is_value=*/false), ahead.key);
    Mean(at_.Value(pair.low), at_.Value(pair.high), 1, at_.dv(), share,
         at_.Rounding(pair.high, /*is_value=*/true), ahead.value);
  }
  void Load(int32_t i, const Ahead& ahead) const {
    const T *key = at_.Key(i), *value = at_.Value(i);
    for (int c = 0; c < at_.d(); ++c) ahead.key[c] = ToFloat(key[c * kBlockSlots]);
    for (int c = 0; c < at_.dv(); ++c) ahead.value[c] = ToFloat(value[c]);
  }
  // As it will be stored; channels are `stride` apart.
  void Mean(const T* low, const T* high, int stride, int n, float share, const RoundingKey& key,
            float* mean) const {
    for (int c = 0; c < n; ++c) {
      buffers_.other[c] = MeanOf(ToFloat(low[static_cast<ptrdiff_t>(c) * stride]),
                                 ToFloat(high[static_cast<ptrdiff_t>(c) * stride]), share);
    }
    T* rounded = static_cast<T*>(buffers_.rounded);
    RoundRow(buffers_.other, n, key, rounded, 1);
    for (int c = 0; c < n; ++c) mean[c] = ToFloat(rounded[c]);
  }

  // What is likely to merge or to be renewed in this pass.
  void RequestMerges(int most) {
    const int64_t left = chunk_.MergedAt(end_) - n_means_;
    if (left <= 0) return;
    std::array<Nearest, kMeansKept> lowest;
    const auto n = std::min<int64_t>({left, kMeansKept, std::ssize(buffers_.means.list)});
    const int found = LowestBoundsCpu(Blocks(), {lowest.data(), static_cast<size_t>(n)});
    for (int i = 0; i < found && n_pending_ < most; ++i) {
      Pair pair = PairOf(lowest[i].candidate);
      const auto excludes = [&](const Ahead* other) { return other->of.Excludes(pair); };
      if (std::any_of(pending_.begin(), pending_.begin() + n_pending_, excludes)) {
        pair = {-1, lowest[i].candidate};
      }
      if (buffers_.means.Find(pair) == nullptr) Request(buffers_.means, pair);
    }
  }
  Pair PairOf(int32_t i) const {
    const int32_t partner = at_.Partner(i) - 1;
    if (partner < 0) return {-1, i};
    return at_.Oldest(i) < at_.Oldest(partner) ? Pair{i, partner} : Pair{partner, i};
  }

  // The distances of all requests to rows and tokens, which stay as they are in this pass.
  void Compute() {
    std::array<const float*, kJoinsAhead> keys;
    std::array<float*, kJoinsAhead> distances;
    for (int i = 0; i < n_pending_; ++i) {
      keys[i] = pending_[i]->key;
      distances[i] = pending_[i]->distances;
    }
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = Blocks(0, chunk_.row_blocks() + BlocksOf(end_)),
                     .keys = std::span(keys).first(static_cast<size_t>(n_pending_)),
                     .distances = std::span(distances).first(static_cast<size_t>(n_pending_)),
                     .wide = buffers_.wide});
    n_pending_ = 0;
  }

  void Join(int64_t i, int64_t all_joined) {
    const Pair alone = {-1, chunk_.CandidateOf(i)};
    if (buffers_.joins.Find(alone) == nullptr) {
      const int64_t end = std::min(all_joined, i + std::ssize(buffers_.joins.list));
      for (int64_t next = i; next < end; ++next) {
        Request(buffers_.joins, {-1, chunk_.CandidateOf(next)});
      }
      if (end - i <= 2) RequestMerges(kMergesAhead);
      Compute();
    }
    if (i >= chunk_.begin) at_.Oldest(alone.high) = static_cast<uint32_t>(i);
    Meet(alone.high, *buffers_.joins.Find(alone));
  }

  const Ahead& MeanAhead(const Pair& pair) {
    if (const Ahead* known = buffers_.means.Find(pair)) {
      ++n_hits_;
      return *known;
    }
    // Twice as far ahead, or half, as half of what was ahead the last time has been of use.
    most_ahead_ = 2 * n_hits_ >= n_ahead_ ? std::min(2 * most_ahead_, kMergesAhead)
                                          : std::max(most_ahead_ / 2, 1);
    Request(buffers_.means, pair);
    RequestMerges(most_ahead_);
    n_hits_ = 0;
    n_ahead_ = n_pending_ - 1;
    Compute();
    return *buffers_.means.Find(pair);
  }

  // Bound and partner of a candidate from all others. gone: the two that it is the mean of.
  void Meet(int32_t i, const Ahead& ahead, const Pair& gone = {-1, -1}) {
    const float* key = ahead.key;
    float* of_means = ahead.distances + chunk_.first_merged();
    const int64_t means = chunk_.first_merged() / kBlockSlots;
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = Blocks(means, means + BlocksOf(n_means_)),
                     .keys = {&key, 1},
                     .distances = {&of_means, 1},
                     .wide = buffers_.wide});
    at_.Partner(i) = 0;
    const Nearest nearest = FindNearestCpu({.dtype = at_.blocks.dtype,
                                            .value_stride = ValueStride(at_.dv()),
                                            .blocks = Blocks(),
                                            .key_distances = ahead.distances,
                                            .value_scale = at_.ValueScale(),
                                            .value = ahead.value,
                                            .sizes = merges_ ? buffers_.sizes : nullptr,
                                            .size = merges_ ? buffers_.sizes[i] : 0,
                                            .self = i,
                                            .gone = {gone.low, gone.high}});
    at_.Bound(i) = nearest.distance;
    at_.Partner(i) = nearest.candidate < 0 ? kStalePartner : nearest.candidate + 1;
  }

  // high = -1 if there are not two candidates. Distances that are no numbers, which only broken
  // weights give, count as the largest.
  Pair Closest() {
    for (PairBound lowest; (lowest = LowestBoundCpu(Blocks())).high >= 0;) {
      if (lowest.low >= 0) return {lowest.low, lowest.high};
      Meet(lowest.high, MeanAhead({-1, lowest.high}));
    }
    const int32_t low = Oldest(-1);
    return {low, low < 0 ? -1 : Oldest(low)};
  }
  // The oldest candidate but for `other`, -1 if there is none.
  int32_t Oldest(int32_t other) const {
    int32_t oldest = -1;
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0 || i == other) continue;
      if (oldest < 0 || at_.Oldest(i) < at_.Oldest(oldest)) oldest = i;
    }
    return oldest;
  }

  void MergeClosest() {
    const Pair pair = Closest();
    if (pair.high < 0) return;
    const Ahead& ahead = MeanAhead(pair);
    const int32_t mean = chunk_.first_merged() + static_cast<int32_t>(n_means_),
                  block = mean / kBlockSlots, slot = mean % kBlockSlots;
    StoreKey(ahead.key, at_.d(), at_.blocks.dtype, at_.keys(block), slot);
    StoreValue(ahead.value, at_.dv(), ValueStride(at_.dv()), at_.blocks.dtype, at_.values(block),
               slot);
    at_.counts(block)[slot] = SumOfCounts(at_.Count(pair.low), at_.Count(pair.high));
    at_.Oldest(mean) = at_.Oldest(pair.low);
    buffers_.sizes[mean] = static_cast<float>(std::sqrt(Size(mean)));
    at_.Partner(pair.low) = at_.Partner(pair.high) = 0;
    Meet(mean, ahead, pair);
  }

  // The first slot from `slot` on that takes a row at the chunk's end.
  int32_t NextFree(int32_t slot) const {
    while (slot < chunk_.n_rows && at_.Partner(slot) != 0) ++slot;
    return slot;
  }

  // The slots of what the chunk leaves in its work blocks, -1 for what is gone. Without merges all
  // tokens are left, whether they have joined or not.
  void FindSlots() const {
    const bool merges = chunk_.n_merges() > 0;
    int32_t free = merges ? NextFree(0) : chunk_.n_rows;
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const bool stays = merges ? at_.Partner(i) != 0 : i - chunk_.first_token() < chunk_.length;
      SlotOf(i) = stays ? free : -1;
      if (stays) free = NextFree(free + 1);
    }
  }

  // A candidate of the work blocks becomes row `slot`.
  void Move(int32_t i, int32_t slot) const {
    const AttentionBlocks& blocks = at_.blocks;
    const int s = slot % kBlockSlots, stride = ValueStride(at_.dv());
    T* key = at_.template Row<T>(blocks.dictionary_keys.place, slot) + s;
    for (int c = 0; c < at_.d(); ++c) key[c * kBlockSlots] = at_.Key(i)[c * kBlockSlots];
    std::copy_n(at_.Value(i), stride,
                at_.template Row<T>(blocks.dictionary_values.place, slot) + s * stride);
    at_.template Row<uint32_t>(blocks.counts, slot)[s] = at_.Count(i);
    at_.template Row<float>(blocks.log_counts, slot)[s] =
        std::log(static_cast<float>(at_.Count(i)));
    at_.template Row<uint32_t>(at_.places.rows.oldest, slot)[s] =
        at_.IsToken(i) ? static_cast<uint32_t>(chunk_.begin + i - chunk_.first_token())
                       : at_.Oldest(i);
    at_.template Row<float>(at_.places.rows.bounds, slot)[s] = at_.Bound(i);
    at_.RowPartner(slot) = at_.Partner(i);
  }

  const PairBlocks<T> at_;
  const PairChunk& chunk_;
  Buffers& buffers_;
  int64_t end_ = 0, n_means_ = 0;  // of the pass; of the chunk so far
  bool merges_ = false;            // pairs, in this pass
  int n_ahead_ = 0, n_hits_ = 0, most_ahead_ = kMergesAhead;
  std::array<const Ahead*, kJoinsAhead> pending_;
  int n_pending_ = 0;
};

template <class T>
void PassTile(const ClosestPairStep& step, const TileRows& tile, Buffers& buffers) {
  const StepSeqs& seqs = step.seqs;
  const int s = tile.sequence, length = step.blocks.wave_span;
  const int64_t start = seqs.start_pos[s],
                begin = start + tile.row - seqs.row_begin[s] - tile.element,
                wave = begin / length - start / length, end = tile.element + tile.n_tokens;
  const PairChunk chunk = {.session = tile.session,
                           .kv_head = tile.kv_head,
                           .begin = begin,
                           .length = length,
                           .slot_cap = step.blocks.live.caps[s],
                           .n_rows = tile.n_live,
                           .n_next = step.blocks.LiveAt(s, wave + 1)};
  const bool joins = JoinedAt(begin + end, chunk.slot_cap) > 0, ends = end == length;
  if (!joins && !ends) return;
  Dictionary<T> dictionary(step, chunk, buffers);
  if (joins) dictionary.Pass(tile.element, end);
  if (ends) dictionary.EndChunk();
}

}  // namespace

void ClosestPairCpu(DeviceContext& context, const ClosestPairStep& step) {
  ScratchScope scope(context);
  std::vector<Buffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakeBuffers(scope, step));
  AttendTilesCpu(context, step, {}, {}, [&](const TileRows& tile, int thread) {
    if (step.blocks.dtype == DType::kBF16) {
      PassTile<BF16>(step, tile, buffers[thread]);
    } else {
      PassTile<float>(step, tile, buffers[thread]);
    }
  });
}

}  // namespace ovq
