// Closest-pair attention on the CPU. Of one head, with rows (Dk, Dv, counts c) and the chunk's own
// keys K and values V up to t:
//   o_t = softmax([q_t Dk^T + ln c | q_t K^T]) [Dv | V]
// and, in the thread that attended, what the token's position brings: a candidate joins, the
// closest pairs (i, j) with counts a, b become (a row_i + b row_j) / (a + b).
// A candidate meets all others when it joins, and again if it comes to the top without a partner.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/mixers/closest_pair/foresight.h"

namespace ovq {
namespace {

template <class T>
class Dictionary {
 public:
  Dictionary(const ClosestPairStep& step, const PairChunk& chunk, PairBuffers& buffers)
      : pass_(step, chunk, buffers), ahead_(pass_) {}

  // What the tokens [from, to) of the chunk bring, once they have attended.
  void Pass(int64_t from, int64_t to) {
    pass_.end = to;
    pass_.n_means = chunk_.MergedAt(from);
    pass_.merges = chunk_.MergedAt(to) > pass_.n_means;
    n_tokens_ = to - from;
    ahead_.Begin(n_tokens_);
    const int64_t all_joined = chunk_.JoinedAt(to);
    for (int64_t offset = from; offset < to; ++offset) {
      for (int64_t i = chunk_.JoinedAt(offset); i < chunk_.JoinedAt(offset + 1); ++i) {
        if (i == 0) FirstSize(static_cast<int32_t>(chunk_.begin + offset + 1));
        Join(i, all_joined);
      }
      for (; pass_.n_means < chunk_.MergedAt(offset + 1); ++pass_.n_means) {
        if (pass_.n_means == 0) UpdateSize();
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

  double Size(int32_t i) const {
    const float scale = at_.ScaleOfValue(i);
    return SquaredNormCpu(at_.Value(i), at_.blocks.dtype, ValueStride(at_.dv())) * scale * scale;
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
  void FirstSize(int32_t n) {
    at_.value_size() = SizeOf(n, [&](int32_t i) { return chunk_.CandidateOf(i); });
    ahead_.Begin(n_tokens_);
  }

  // V from the candidates, if it is far from theirs: bounds are then no more than that.
  void UpdateSize() {
    const float size = SizeOf(chunk_.end(), [&](int32_t i) { return at_.Partner(i) ? i : -1; });
    const float old = at_.value_size(), old_scale = at_.ValueScale();
    if (size <= old * kPairSizeChange && old <= size * kPairSizeChange) return;
    at_.value_size() = size;
    ahead_.Begin(n_tokens_);
    const float shrink = ShrinkOfBounds(old_scale, at_.ValueScale());
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      at_.Bound(i) *= shrink;
      at_.Partner(i) = kStalePartner;
    }
  }

  void Join(int64_t i, int64_t all_joined) {
    const int32_t candidate = pass_.CandidateOf(i);
    if (candidate < 0) return;
    const Ahead& ahead = ahead_.JoinAhead(candidate, i, all_joined);
    if (i >= chunk_.begin) at_.Oldest(candidate) = static_cast<uint32_t>(i);
    Meet(candidate, ahead);
  }

  // Bound and partner of a candidate from all others. gone: the two that it is the mean of.
  void Meet(int32_t i, const Ahead& ahead, const Pair& gone = {-1, -1}, double moved = 0) {
    const float* key = ahead.key;
    float* of_means = ahead.distances + chunk_.first_merged();
    const int64_t means = chunk_.first_merged() / kBlockSlots;
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.Blocks(means, means + BlocksOf(pass_.n_means)),
                     .keys = {&key, 1},
                     .distances = {&of_means, 1},
                     .wide = buffers_.wide});
    at_.Partner(i) = 0;
    const Nearest nearest = FindNearestCpu({.dtype = at_.blocks.dtype,
                                            .value_stride = ValueStride(at_.dv()),
                                            .blocks = pass_.Blocks(),
                                            .key_distances = ahead.distances,
                                            .key = ahead.is_least ? key : nullptr,
                                            .head_dim = at_.d(),
                                            .moved = static_cast<float>(moved),
                                            .value_scale = at_.ValueScale(),
                                            .value = ahead.value,
                                            .sizes = pass_.merges ? buffers_.sizes : nullptr,
                                            .size = pass_.merges ? buffers_.sizes[i] : 0,
                                            .self = i,
                                            .gone = {gone.low, gone.high}});
    at_.Bound(i) = nearest.distance;
    at_.Partner(i) = nearest.candidate < 0 ? kStalePartner : nearest.candidate + 1;
  }

  // high = -1 if there are not two candidates. Distances that are no numbers, which only broken
  // weights give, count as the largest.
  Pair Closest() {
    for (PairBound lowest; (lowest = LowestBoundCpu(pass_.Blocks())).high >= 0;) {
      if (lowest.low >= 0) return {lowest.low, lowest.high};
      Meet(lowest.high, ahead_.MeanAhead({-1, lowest.high}));
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
    Moving* moving = ahead_.FindMoving(pair);
    if (moving != nullptr) ahead_.Move(*moving, pair);
    Ahead& ahead = moving != nullptr ? buffers_.moved : ahead_.MeanAhead(pair);
    const int32_t mean = chunk_.first_merged() + static_cast<int32_t>(pass_.n_means),
                  block = mean / kBlockSlots, slot = mean % kBlockSlots;
    StoreKey(ahead.key, at_.d(), at_.blocks.dtype, at_.keys(block), slot);
    StoreValue(ahead.value, at_.dv(), ValueStride(at_.dv()), at_.blocks.dtype, at_.values(block),
               slot);
    at_.counts(block)[slot] = SumOfCounts(at_.Count(pair.low), at_.Count(pair.high));
    at_.Oldest(mean) = at_.Oldest(pair.low);
    buffers_.sizes[mean] = static_cast<float>(std::sqrt(Size(mean)));
    at_.Partner(pair.low) = at_.Partner(pair.high) = 0;
    if (moving != nullptr) {
      Meet(mean,
           {.of = pair,
            .key = ahead.key,
            .value = ahead.value,
            .distances = moving->least,
            .is_least = true},
           pair, ahead_.Apart(ahead, *moving));
      moving->mean = mean;
    } else {
      Meet(mean, ahead, pair);
      ahead_.BeginMoving(mean, ahead);
    }
  }

  // The first slot from `slot` on that takes a row at the chunk's end.
  int32_t NextFree(int32_t slot) const {
    while (slot < chunk_.n_rows && at_.IsRowInUse(slot)) ++slot;
    return slot;
  }

  // The slots of what the chunk leaves in its work blocks, -1 for what is gone.
  void FindSlots() const {
    int32_t free = chunk_.n_merges() > 0 ? NextFree(0) : chunk_.n_rows;
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const bool stays = at_.StaysAtEnd(i);
      SlotOf(i) = stays ? free : -1;
      if (stays) free = NextFree(free + 1);
    }
  }

  // A candidate of the work blocks becomes row `slot`.
  void Move(int32_t i, int32_t slot) const {
    const AttentionBlocks& blocks = at_.blocks;
    const int s = slot % kBlockSlots, stride = ValueStride(at_.dv());
    T *keys = at_.template Row<T>(blocks.dictionary_keys.place, slot),
      *values = at_.template Row<T>(blocks.dictionary_values.place, slot);
    for (int c = 0; c < at_.d(); ++c) keys[c * kBlockSlots + s] = at_.Key(i)[c * kBlockSlots];
    std::copy_n(at_.Value(i), stride, values + s * stride);
    if constexpr (kHasExponents<T>) {
      const int32_t block = i / kBlockSlots, from = i % kBlockSlots;
      ExponentsOf(keys, at_.d())[s] = ExponentsOf(at_.keys(block), at_.d())[from];
      ExponentsOf(values, stride)[s] = ExponentsOf(at_.values(block), stride)[from];
    }
    at_.template Row<uint32_t>(blocks.counts, slot)[s] = at_.Count(i);
    at_.template Row<float>(blocks.log_counts, slot)[s] =
        std::log(static_cast<float>(at_.Count(i)));
    at_.template Row<uint32_t>(at_.places.rows.oldest, slot)[s] =
        at_.IsToken(i) ? static_cast<uint32_t>(chunk_.begin + i - chunk_.first_token())
                       : at_.Oldest(i);
    at_.template Row<float>(at_.places.rows.bounds, slot)[s] = at_.BoundAtEnd(i);
    at_.RowPartner(slot) = at_.Partner(i);
  }

  PairPass<T> pass_;
  Foresight<T> ahead_;
  const PairBlocks<T>& at_ = pass_.at;
  const PairChunk& chunk_ = pass_.chunk;
  PairBuffers& buffers_ = pass_.buffers;
  int64_t n_tokens_ = 0;  // of the pass
};

template <class T>
void PassTile(const ClosestPairStep& step, const TileRows& tile, PairBuffers& buffers) {
  const StepSeqs& seqs = step.seqs;
  const int s = tile.sequence, length = step.blocks.wave_span;
  const int64_t start = seqs.start_pos[s],
                begin = start + tile.row - seqs.row_begin[s] - tile.element,
                wave = begin / length - start / length, end = tile.element + tile.n_tokens;
  const PairChunk chunk = {.session = tile.session,
                           .kv_head = tile.kv_head,
                           .begin = begin,
                           .length = length,
                           .slot_cap = step.blocks.live.CapOf(s, tile.kv_head),
                           .n_rows = tile.n_live,
                           .n_next = step.blocks.LiveAt(s, tile.kv_head, wave + 1),
                           .rule = step.rule};
  const bool joins = chunk.JoinedAt(end) > 0, ends = end == length;
  if (!joins && !ends) return;
  Dictionary<T> dictionary(step, chunk, buffers);
  if (joins) dictionary.Pass(tile.element, end);
  if (ends) dictionary.EndChunk();
}

}  // namespace

void ClosestPairCpu(DeviceContext& context, const ClosestPairStep& step) {
  ScratchScope scope(context);
  std::vector<PairBuffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakePairBuffers(scope, step));
  AttendTilesCpu(context, step, {}, {}, [&](const TileRows& tile, int thread) {
    if (step.blocks.dtype == DType::kBF16) {
      PassTile<BF16>(step, tile, buffers[thread]);
    } else if (step.blocks.dtype == DType::kI8) {
      PassTile<Int8>(step, tile, buffers[thread]);
    } else {
      PassTile<float>(step, tile, buffers[thread]);
    }
  });
}

}  // namespace ovq
