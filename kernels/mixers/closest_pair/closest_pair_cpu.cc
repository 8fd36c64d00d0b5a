// Closest-pair attention on the CPU. For one head with slots (Dk, Dv, counts c) and the chunk's own
// keys K and values V up to position t:
//   o_t = softmax([beta q_t Dk^T + ln c | beta q_t K^T]) [Dv; V]
// Then, in the same thread, the merges that are due: a candidate joins, and the closest pairs (i,
// j)
// become slot = (c_i slot_i + c_j slot_j) / (c_i + c_j).
// A candidate's distances to all others are computed when it joins, and again when it has the
// lowest
// bound but no partner.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/mixers/closest_pair/pair_look_ahead.h"

namespace ovq {
namespace {

template <class T>
class Dictionary {
 public:
  Dictionary(const ClosestPairArgs& args, const PairChunk& chunk, PairBuffers& buffers)
      : pass_(args, chunk, buffers), look_ahead_(pass_) {}

  // Joins and merges of the chunk's tokens [from, to), after they have attended.
  void Pass(int64_t from, int64_t to) {
    pass_.end = to;
    pass_.n_means = chunk_.MergedAt(from);
    pass_.merges = chunk_.MergedAt(to) > pass_.n_means;
    n_tokens_ = to - from;
    look_ahead_.Begin(n_tokens_);
    const int64_t all_joined = chunk_.JoinedAt(to);
    for (int64_t offset = from; offset < to; ++offset) {
      for (int64_t i = chunk_.JoinedAt(offset); i < chunk_.JoinedAt(offset + 1); ++i) {
        if (i == 0) InitValueSize(static_cast<int32_t>(chunk_.begin + offset + 1));
        Join(i, all_joined);
      }
      for (; pass_.n_means < chunk_.MergedAt(offset + 1); ++pass_.n_means) {
        if (pass_.n_means == 0) UpdateValueSize();
        MergeClosest();
      }
    }
  }

  // Moves the chunk's tokens and means into the slots of those that are gone, then into new slots.
  void EndChunk() {
    FindSlots();
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const int32_t slot = NewSlot(i);
      if (slot >= 0) MoveToSlot(i, slot);
    }
    for (int32_t slot = 0; slot < chunk_.n_slots_next; ++slot) {
      int32_t& partner = at_.SlotPartner(slot);
      if (partner > chunk_.first_token()) partner = NewSlot(partner - 1) + 1;
    }
    for (int32_t b = chunk_.slot_blocks(); b < chunk_.n_blocks(); ++b) {
      std::fill_n(at_.partners(b), kBlockSlots, 0);
    }
  }

 private:
  int32_t& NewSlot(int32_t i) const { return buffers_.new_slots[i - chunk_.first_token()]; }

  double SquaredValueNorm(int32_t i) const {
    const float scale = at_.ValueSlot(i).scale();
    return SquaredNormCpu(at_.Value(i), at_.blocks.dtype, ValueStride(at_.dv())) * scale * scale;
  }

  // value_size() measured over the candidates of(0) .. of(n - 1), without negative ones.
  template <class Of>
  float MeasureValueSize(int32_t n, Of of) const {
    double values = 0, keys = 0, found = 0;
    for (int32_t i = 0; i < n; ++i) {
      if (of(i) < 0) continue;
      values += SquaredValueNorm(of(i));
      keys += at_.KeySize(of(i));
      ++found;
    }
    return at_.MeasureValueSize(values, keys, std::max(found, 1.0));
  }
  // Measures V over the sequence's first n tokens.
  void InitValueSize(int32_t n) {
    at_.value_size() = MeasureValueSize(n, [&](int32_t i) { return chunk_.FindCandidate(i); });
    look_ahead_.Begin(n_tokens_);
  }

  // Measures V over the candidates and stores it if the old one is far off; bounds are then scaled
  // to
  // stay lower bounds.
  void UpdateValueSize() {
    const float size =
        MeasureValueSize(chunk_.end(), [&](int32_t i) { return at_.Partner(i) ? i : -1; });
    const float old = at_.value_size(), old_scale = at_.ValueScale();
    if (size <= old * kMaxPairSizeChange && old <= size * kMaxPairSizeChange) return;
    at_.value_size() = size;
    look_ahead_.Begin(n_tokens_);
    const float shrink = BoundShrinkFactor(old_scale, at_.ValueScale());
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      at_.Bound(i) *= shrink;
      at_.Partner(i) = kStalePartner;
    }
  }

  void Join(int64_t i, int64_t all_joined) {
    const int32_t candidate = pass_.FindCandidate(i);
    if (candidate < 0) return;
    const LookAhead& ahead = look_ahead_.FindOrComputeJoin(candidate, i, all_joined);
    if (i >= chunk_.begin) at_.Oldest(candidate) = static_cast<uint32_t>(i);
    UpdatePartner(candidate, ahead);
  }

  // Sets bound and partner of a candidate from all others. gone: the two candidates whose mean it
  // is.
  void UpdatePartner(int32_t i, const LookAhead& ahead, const Pair& gone = {-1, -1},
                     double drift = 0) {
    const float* key = ahead.key;
    float* of_means = ahead.distances + chunk_.first_merged();
    const int64_t means = chunk_.first_merged() / kBlockSlots;
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.Blocks(means, means + NumBlocks(pass_.n_means)),
                     .keys = {&key, 1},
                     .distances = {&of_means, 1},
                     .wide = buffers_.wide});
    at_.Partner(i) = 0;
    const Nearest nearest = FindNearestCpu({.dtype = at_.blocks.dtype,
                                            .value_stride = ValueStride(at_.dv()),
                                            .blocks = pass_.Blocks(),
                                            .key_distances = ahead.distances,
                                            .key = ahead.is_lower_bound ? key : nullptr,
                                            .head_dim = at_.d(),
                                            .drift = static_cast<float>(drift),
                                            .value_scale = at_.ValueScale(),
                                            .value = ahead.value,
                                            .sizes = pass_.merges ? buffers_.sizes : nullptr,
                                            .size = pass_.merges ? buffers_.sizes[i] : 0,
                                            .self = i,
                                            .gone = {gone.low, gone.high}});
    at_.Bound(i) = nearest.distance;
    at_.Partner(i) = nearest.candidate < 0 ? kStalePartner : nearest.candidate + 1;
  }

  // The closest pair; high = -1 if there are fewer than two candidates. NaN distances, which only
  // broken weights give, count as the largest.
  Pair Closest() {
    for (PairBound lowest; (lowest = LowestBoundCpu(pass_.Blocks())).high >= 0;) {
      if (lowest.low >= 0) return {lowest.low, lowest.high};
      UpdatePartner(lowest.high, look_ahead_.FindOrComputeMean({-1, lowest.high}));
    }
    const int32_t low = Oldest(-1);
    return {low, low < 0 ? -1 : Oldest(low)};
  }
  // Oldest candidate except `other`; -1 if there is none.
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
    RunningMean* running = look_ahead_.FindRunningMean(pair);
    if (running != nullptr) look_ahead_.AdvanceRunningMean(*running, pair);
    LookAhead& ahead =
        running != nullptr ? buffers_.rounded_mean : look_ahead_.FindOrComputeMean(pair);
    const int32_t mean = chunk_.first_merged() + static_cast<int32_t>(pass_.n_means),
                  block = mean / kBlockSlots, slot = mean % kBlockSlots;
    StoreKey(ahead.key, at_.d(), at_.blocks.dtype, at_.keys(block), slot);
    StoreValue(ahead.value, at_.dv(), ValueStride(at_.dv()), at_.blocks.dtype, at_.values(block),
               slot);
    at_.counts(block)[slot] = AddCounts(at_.Count(pair.low), at_.Count(pair.high));
    at_.Oldest(mean) = at_.Oldest(pair.low);
    buffers_.sizes[mean] = static_cast<float>(std::sqrt(SquaredValueNorm(mean)));
    at_.Partner(pair.low) = at_.Partner(pair.high) = 0;
    if (running != nullptr) {
      UpdatePartner(mean,
                    {.of = pair,
                     .key = ahead.key,
                     .value = ahead.value,
                     .distances = running->lower_bounds,
                     .is_lower_bound = true},
                    pair, look_ahead_.DistanceRoundedUp(ahead, *running));
      running->mean = mean;
    } else {
      UpdatePartner(mean, ahead, pair);
      look_ahead_.AddRunningMean(mean, ahead);
    }
  }

  // First slot from `slot` on that is free at the chunk's end.
  int32_t NextFree(int32_t slot) const {
    while (slot < chunk_.n_slots && at_.IsSlotInUse(slot)) ++slot;
    return slot;
  }

  // Assigns slots to what the chunk leaves in its work blocks; -1 for candidates that are gone.
  void FindSlots() const {
    int32_t free = chunk_.n_merges() > 0 ? NextFree(0) : chunk_.n_slots;
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const bool stays = at_.StaysAtEnd(i);
      NewSlot(i) = stays ? free : -1;
      if (stays) free = NextFree(free + 1);
    }
  }

  // Copies candidate i of the work blocks into slot `slot`.
  void MoveToSlot(int32_t i, int32_t slot) const {
    const AttentionBlocks& blocks = at_.blocks;
    const int s = slot % kBlockSlots, stride = ValueStride(at_.dv());
    T *keys = at_.template SlotField<T>(blocks.dictionary_keys.place, slot),
      *values = at_.template SlotField<T>(blocks.dictionary_values.place, slot);
    for (int c = 0; c < at_.d(); ++c) keys[c * kBlockSlots + s] = at_.Key(i)[c * kBlockSlots];
    std::copy_n(at_.Value(i), stride, values + s * stride);
    if constexpr (Slots<T>::kScaled) {
      *KeyRow(keys, at_.d(), s).exponent = *at_.KeySlot(i).exponent;
      *ValueRow(values, stride, s).exponent = *at_.ValueSlot(i).exponent;
    }
    at_.template SlotField<uint32_t>(blocks.counts, slot)[s] = at_.Count(i);
    at_.template SlotField<float>(blocks.log_counts, slot)[s] =
        std::log(static_cast<float>(at_.Count(i)));
    at_.template SlotField<uint32_t>(at_.places.slots.oldest, slot)[s] =
        at_.IsToken(i) ? static_cast<uint32_t>(chunk_.begin + i - chunk_.first_token())
                       : at_.Oldest(i);
    at_.template SlotField<float>(at_.places.slots.bounds, slot)[s] = at_.BoundAtEnd(i);
    at_.SlotPartner(slot) = at_.Partner(i);
  }

  PairPass<T> pass_;
  PairLookAhead<T> look_ahead_;
  const PairBlocks<T>& at_ = pass_.at;
  const PairChunk& chunk_ = pass_.chunk;
  PairBuffers& buffers_ = pass_.buffers;
  int64_t n_tokens_ = 0;  // in this pass
};

template <class T>
void PassTile(const ClosestPairArgs& args, const TileTokens& tile, PairBuffers& buffers) {
  const BatchSequences& seqs = args.seqs;
  const int s = tile.sequence, length = args.blocks.wave_span;
  const int64_t start = seqs.start_pos[s],
                begin = start + tile.row - seqs.token_begin[s] - tile.element,
                wave = begin / length - start / length, end = tile.element + tile.n_tokens;
  const PairChunk chunk = {.session = tile.session,
                           .kv_head = tile.kv_head,
                           .begin = begin,
                           .length = length,
                           .slot_cap = args.blocks.live.HeadSlotCap(s, tile.kv_head),
                           .n_slots = tile.n_live,
                           .n_slots_next = args.blocks.LiveAt(s, tile.kv_head, wave + 1),
                           .rule = args.rule};
  const bool joins = chunk.JoinedAt(end) > 0, ends = end == length;
  if (!joins && !ends) return;
  Dictionary<T> dictionary(args, chunk, buffers);
  if (joins) dictionary.Pass(tile.element, end);
  if (ends) dictionary.EndChunk();
}

}  // namespace

void ClosestPairCpu(DeviceContext& context, const ClosestPairArgs& args) {
  ScratchScope scope(context);
  std::vector<PairBuffers> buffers;
  for (int i = 0; i < context.n_threads(); ++i) buffers.push_back(MakePairBuffers(scope, args));
  AttendTilesCpu(context, args, {}, {}, [&](const TileTokens& tile, int thread) {
    VisitSlots(args.blocks.dtype,
               [&]<class T>(Slots<T>) { PassTile<T>(args, tile, buffers[thread]); });
  });
}

}  // namespace ovq
