// Closest-pair attention on the CPU. For one head with slots (Dk, Dv, counts c) and the chunk's own
// keys K and values V up to position t:
//   o_t = softmax([beta q_t Dk^T + ln c | beta q_t K^T]) [Dv; V]
// Then, in the same thread, the merges that are due: a candidate joins, and the closest pairs (i,
// j) become slot = (c_i slot_i + c_j slot_j) / (c_i + c_j), closest by
//   |k_i - k_j|^2 + (w K / V) |v_i - v_j|^2 + lambda (s_i + s_j),  s = 1 - |k|^2
// A candidate's distances to all others are computed when it joins, and again when it has the
// lowest bound but no partner.
#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/mixers/closest_pair/look_ahead.h"
#include "kernels/mixers/common/slot_variance.h"

namespace ovq::kernels {
namespace {

template <class T>
class Dictionary {
 public:
  Dictionary(const ClosestPairArgs& args, const PairChunk& chunk, PairBuffers& buffers)
      : pass_(args, chunk, buffers), look_ahead_(pass_) {}

  // Joins and merges of the chunk's tokens [from, to), after they have attended.
  void Pass(int64_t from, int64_t to) {
    pass_.begin = from;
    pass_.end = to;
    pass_.n_means = chunk_.MergedAt(from);
    look_ahead_.Begin();
    MeasureVariances(0, std::ssize(pass_.All()));
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
    const int32_t first = chunk_.first_token();
    for (int32_t i = first; i < chunk_.end(); ++i) {
      if (NewSlot(i) >= 0) MoveToSlot(i, NewSlot(i));
    }
    for (int32_t slot = 0; slot < chunk_.n_slots_next; ++slot) {
      int32_t& partner = end_.SlotPartner(slot);
      if (partner > first) partner = NewSlot(partner - 1) + 1;
    }
    for (int32_t i = first; i < chunk_.end(); ++i) at_.Partner(i) = 0;
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
    look_ahead_.Begin();
  }

  // Measures V over the candidates and stores it if the old one is far off; bounds are then scaled
  // to stay lower bounds.
  void UpdateValueSize() {
    const float size =
        MeasureValueSize(chunk_.end(), [&](int32_t i) { return at_.Partner(i) ? i : -1; });
    const float old = at_.value_size(), old_scale = at_.ValueScale();
    if (size <= old * kMaxPairSizeChange && old <= size * kMaxPairSizeChange) return;
    at_.value_size() = size;
    look_ahead_.Begin();
    const float shrink = BoundShrinkFactor(old_scale, at_.ValueScale());
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      if (at_.Partner(i) == 0) continue;
      at_.Bound(i) *= shrink;
      at_.Partner(i) = kStalePartner;
    }
  }

  // Fills buffers_.variances of the blocks [from, to), if they count: |key|^2 is the distance of
  // zero.
  void MeasureVariances(int64_t from, int64_t to) const {
    float* variances = buffers_.variances;
    if (variances == nullptr) return;
    variances += from * kBlockSlots;
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.Blocks(from, to),
                     .keys = {&buffers_.zeros, 1},
                     .distances = {&variances, 1},
                     .wide = buffers_.wide});
    const auto of_slot = [&](float squared_key) { return at_.MergeVariance(squared_key); };
    std::transform(variances, variances + (to - from) * kBlockSlots, variances, of_slot);
  }

  void Join(int64_t token, int64_t all_joined) {
    const int32_t candidate = pass_.FindCandidate(token);
    if (candidate < 0) return;
    const KnownDistances& known = look_ahead_.FindOrComputeJoin(candidate, token, all_joined);
    if (token >= chunk_.begin) at_.Oldest(candidate) = static_cast<uint32_t>(token);
    UpdatePartner(candidate, known);
  }

  // Sets bound and partner of a candidate from all others. gone: the pair whose mean it is. drift:
  // how far the place of the lower bounds is from the candidate.
  void UpdatePartner(int32_t i, const KnownDistances& known, const Pair& gone = {-1, -1},
                     double drift = 0) {
    const float* key = known.key;
    float* of_means = known.distances + chunk_.first_merged();
    KeyDistancesCpu({.dtype = at_.blocks.dtype,
                     .head_dim = at_.d(),
                     .blocks = pass_.Means(),
                     .keys = {&key, 1},
                     .distances = {&of_means, 1},
                     .wide = buffers_.wide});
    at_.Partner(i) = 0;
    const Nearest nearest = FindNearestCpu({.dtype = at_.blocks.dtype,
                                            .value_stride = ValueStride(at_.dv()),
                                            .blocks = pass_.All(),
                                            .key_distances = known.distances,
                                            .key = look_ahead_.uses_lower_bounds() ? key : nullptr,
                                            .head_dim = at_.d(),
                                            .drift = static_cast<float>(drift),
                                            .value_scale = at_.ValueScale(),
                                            .value = known.value,
                                            .self = i,
                                            .variances = buffers_.variances,
                                            .gone = {gone.low, gone.high}});
    at_.Bound(i) = nearest.distance;
    at_.Partner(i) = nearest.candidate < 0 ? kStalePartner : nearest.candidate + 1;
  }

  // The closest pair; high = -1 if there are fewer than two candidates. NaN distances, which only
  // broken weights give, count as the largest.
  Pair Closest() {
    for (PairBound lowest; (lowest = LowestBoundCpu(pass_.All())).high >= 0;) {
      if (lowest.low >= 0) return {lowest.low, lowest.high};
      UpdatePartner(lowest.high, look_ahead_.FindOrCompute(lowest.high));
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
    RunningMean* running = look_ahead_.MakeMean(pair);
    KnownDistances known = buffers_.mean;
    const int32_t mean = chunk_.first_merged() + static_cast<int32_t>(pass_.n_means),
                  block = mean / kBlockSlots, slot = mean % kBlockSlots;
    StoreKey(known.key, at_.d(), at_.blocks.dtype, at_.keys(block), slot);
    StoreValue(known.value, at_.dv(), ValueStride(at_.dv()), at_.blocks.dtype, at_.values(block),
               slot);
    MeasureVariances(block, block + 1);
    at_.StoredCount(mean) = AddCounts(at_.Count(pair.low), at_.Count(pair.high));
    at_.Oldest(mean) = at_.Oldest(pair.low);
    at_.Partner(pair.low) = at_.Partner(pair.high) = 0;
    if (running != nullptr) {
      known.distances = running->lower_bounds;
      UpdatePartner(mean, known, pair, look_ahead_.DistanceRoundedUp(known, *running));
      running->mean = mean;
    } else {
      UpdatePartner(mean, known, pair);
      look_ahead_.AddRunningMean(mean);
    }
  }

  // First slot from `slot` on that is free at the chunk's end.
  int32_t NextFree(int32_t slot) const {
    while (slot < chunk_.n_slots && end_.IsSlotInUse(slot)) ++slot;
    return slot;
  }

  // Assigns slots to what the chunk leaves in its work blocks; -1 for candidates that are gone.
  void FindSlots() const {
    int32_t free = chunk_.n_merges() > 0 ? NextFree(0) : chunk_.n_slots;
    for (int32_t i = chunk_.first_token(); i < chunk_.end(); ++i) {
      const bool stays = end_.Stays(i);
      NewSlot(i) = stays ? free : -1;
      if (stays) free = NextFree(free + 1);
    }
  }

  // Copies candidate i of the work blocks into slot `slot`.
  void MoveToSlot(int32_t i, int32_t slot) const {
    const AttentionBlocks& blocks = at_.blocks;
    const int s = slot % kBlockSlots, stride = ValueStride(at_.dv());
    T *keys = end_.template SlotBlock<T>(blocks.dictionary_keys.place, slot),
      *values = end_.template SlotBlock<T>(blocks.dictionary_values.place, slot);
    for (int c = 0; c < at_.d(); ++c) keys[c * kBlockSlots + s] = at_.Key(i)[c * kBlockSlots];
    std::copy_n(at_.Value(i), stride, values + s * stride);
    if constexpr (Slots<T>::kScaled) {
      *KeyRow(keys, at_.d(), s).exponent = *at_.KeySlot(i).exponent;
      *ValueRow(values, stride, s).exponent = *at_.ValueSlot(i).exponent;
    }
    end_.MoveFields(i, slot,
                    std::log(static_cast<float>(at_.Count(i))) +
                        VarianceBias(blocks, chunk_.kv_head, at_.Count(i), at_.KeySlot(i)));
  }

  PairPass<T> pass_;
  LookAhead<T> look_ahead_;
  const PairBlocks<T>& at_ = pass_.at;
  const PairChunkEnd<T> end_ = {pass_.at};
  const PairChunk& chunk_ = pass_.chunk;
  PairBuffers& buffers_ = pass_.buffers;
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

}  // namespace ovq::kernels
