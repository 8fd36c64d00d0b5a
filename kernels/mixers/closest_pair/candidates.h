// Layout of a chunk's merge candidates and the arithmetic of a merge, shared by the CPU and CUDA
// kernels.
#pragma once

#include <cstdint>

#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq::kernels {

inline constexpr float kMaxPairSizeChange = 2.0f;  // factor; V is measured again beyond it
// Smaller variances of a candidate's keys count as none, so that rounding gives equal tokens and
// their means no distance.
inline constexpr float kLeastVariance = 1.0f / 16;
// Tie-break key of a pair of candidates, given their oldest tokens: smaller keys merge first. Pairs
// compare by the older member's oldest token, then by the younger member's. Never 0.
constexpr unsigned long long PairOrder(uint32_t one, uint32_t other) {
  const uint32_t low = one < other ? one : other, high = one < other ? other : one;
  return static_cast<unsigned long long>(low) << 32 | high;
}

// Weight of the younger candidate in the mean of two, given both counts.
constexpr float HighShare(uint32_t low, uint32_t high) {
  return static_cast<float>(high) / static_cast<float>(uint64_t{low} + high);
}
constexpr float WeightedMean(float low, float high, float share) {
  return low + share * (high - low);
}
// Sum of two counts, saturating at 2^32 - 1.
constexpr uint32_t AddCounts(uint32_t low, uint32_t high) {
  const uint64_t sum = uint64_t{low} + high;
  return sum < 0xffffffffu ? static_cast<uint32_t>(sum) : 0xffffffffu;
}
// Factor that turns lower bounds computed with value scale `old_scale` into lower bounds for
// `scale`. It is slightly too small, so that rounding never lifts a bound above its distance.
constexpr float BoundShrinkFactor(float old_scale, float scale) {
  return scale < old_scale ? scale / old_scale * 0.99999f : 1.0f;
}

// One head's candidates by index. A candidate lives in a block of slots, of the chunk's tokens or
// of its means. T is the type of keys and values.
template <class T>
struct PairBlocks {
  const AttentionBlocks& blocks;
  const PairPlaces& places;
  PairChunk chunk;

  // Block `block` of a field, which has one place for the slots and one for the work blocks.
  template <class U>
  constexpr U* Block(const StatePlace& slots, const StatePlace& work, int32_t block) const {
    const int32_t n = chunk.slot_blocks();
    return block < n ? slots.At<U>(chunk.session, chunk.kv_head, block)
                     : work.At<U>(chunk.session, chunk.kv_head, block - n);
  }
  constexpr T* keys(int32_t block) const {
    return Block<T>(blocks.dictionary_keys.place, places.work_keys, block);
  }
  constexpr T* values(int32_t block) const {
    return Block<T>(blocks.dictionary_values.place, places.work_values, block);
  }
  // Element of candidate i in a field of [64] elements a block.
  template <class U>
  constexpr U& Element(const StatePlace& slots, const StatePlace& work, int32_t i) const {
    return Block<U>(slots, work, i / kBlockSlots)[i % kBlockSlots];
  }
  constexpr float& Bound(int32_t i) const {
    return Element<float>(places.slots.bounds, places.work.bounds, i);
  }
  constexpr int32_t& Partner(int32_t i) const {
    return Element<int32_t>(places.slots.partners, places.work.partners, i);
  }
  constexpr uint32_t& Oldest(int32_t i) const {
    return Element<uint32_t>(places.slots.oldest, places.work.oldest, i);
  }
  // The count of a slot or a mean; a token has no stored count.
  constexpr uint32_t& StoredCount(int32_t i) const {
    return Element<uint32_t>(blocks.counts, places.work_counts, i);
  }
  constexpr uint32_t Count(int32_t i) const { return chunk.IsToken(i) ? 1 : StoredCount(i); }

  constexpr int d() const { return blocks.shape.head_dim; }
  constexpr int dv() const { return blocks.shape.value_head_dim; }
  // A candidate's key (channels are 64 elements apart) and value (channels are adjacent).
  constexpr T* Key(int32_t i) const { return keys(i / kBlockSlots) + i % kBlockSlots; }
  constexpr T* Value(int32_t i) const {
    return values(i / kBlockSlots) + i % kBlockSlots * ValueStride(dv());
  }
  constexpr SlotRow<T> KeySlot(int32_t i) const {
    return KeyRow(keys(i / kBlockSlots), d(), i % kBlockSlots);
  }
  constexpr SlotRow<T> ValueSlot(int32_t i) const {
    return ValueRow(values(i / kBlockSlots), ValueStride(dv()), i % kBlockSlots);
  }

  // V; V / K if K is measured.
  constexpr float& value_size() const {
    return *places.value_size.At<float>(chunk.session, chunk.kv_head);
  }
  // |key|^2 of a candidate; 0 if K is a constant and thus not measured.
  constexpr float KeySize(int32_t i) const {
    float sum = 0;
    for (int c = 0; chunk.rule.measures_keys() && c < d(); ++c) {
      const float x = KeySlot(i)[c];
      sum += x * x;
    }
    return sum;
  }
  // value_size() from sums over n candidates: of |value|^2 and of KeySize.
  template <class Sum>
  constexpr float MeasureValueSize(Sum values, Sum keys, Sum n) const {
    if (!chunk.rule.measures_keys()) return static_cast<float>(values / n);
    return keys > 0 ? static_cast<float>(values / keys) : 0.0f;
  }
  // Weight of values in distances: w K / V.
  constexpr float ValueScale() const {
    const float size = value_size(),
                key_size = chunk.rule.measures_keys() ? 1 : chunk.rule.key_size;
    return size > 0 ? chunk.rule.value_weight * key_size / size : 0.0f;
  }

  // Part of a candidate in the distances of its pairs: lambda times the variance of its keys, 1 -
  // |key|^2, given |key|^2 of the stored mean, summed by fused multiply-adds in order of channels.
  constexpr float MergeVariance(float squared_key) const {
    const float variance = 1 - squared_key;
    return variance > kLeastVariance ? chunk.rule.merge_variance * variance : 0;
  }

  // True if slot `row` holds `token` and has not joined the candidates.
  constexpr bool IsUnjoinedToken(int32_t row, int64_t token) const {
    return Oldest(row) == static_cast<uint32_t>(token) && Partner(row) == 0 &&
           Bound(row) == kNotJoined && !chunk.IsPinned(row);
  }
  // Key of the random bits that round the mean made when candidate `high` is merged away.
  constexpr RoundingKey Rounding(int32_t high, bool is_value) const {
    return {.layer = static_cast<uint32_t>(blocks.layer),
            .kv_head = static_cast<uint32_t>(chunk.kv_head),
            .row = Oldest(high),
            .is_value = is_value,
            .chunk = chunk.begin / chunk.length};
  }
};

// A chunk's end: what it leaves in its work blocks moves into slots.
template <class T>
struct PairChunkEnd {
  const PairBlocks<T>& at;

  constexpr bool IsSlotInUse(int32_t slot) const {
    return at.Partner(slot) != 0 || at.Bound(slot) == kNotJoined;
  }
  // True if candidate i of the work blocks is a token that keeps a slot of its own.
  constexpr bool IsApart(int32_t i) const {
    return at.chunk.IsToken(i) && at.chunk.KeepsOwnSlot(at.chunk.Position(i));
  }
  // True if candidate i of the work blocks needs a slot.
  constexpr bool Stays(int32_t i) const {
    const bool is_token = i - at.chunk.first_token() < at.chunk.length;
    if (at.chunk.n_merges() <= 0) return is_token;
    return at.Partner(i) != 0 || (is_token && IsApart(i));
  }
  // A slot's block of a field; it may be one that the chunk adds.
  template <class U>
  constexpr U* SlotBlock(const StatePlace& place, int32_t slot) const {
    return place.At<U>(at.chunk.session, at.chunk.kv_head, slot / kBlockSlots);
  }
  constexpr int32_t& SlotPartner(int32_t slot) const {
    return SlotBlock<int32_t>(at.places.slots.partners, slot)[slot % kBlockSlots];
  }
  // Moves all fields but key and value of candidate i of the work blocks.
  constexpr void MoveFields(int32_t i, int32_t slot, float log_count) const {
    const int32_t s = slot % kBlockSlots;
    const CandidatePlaces& slots = at.places.slots;
    SlotBlock<uint32_t>(at.blocks.counts, slot)[s] = at.Count(i);
    SlotBlock<float>(at.blocks.log_counts, slot)[s] = log_count;
    SlotBlock<uint32_t>(slots.oldest, slot)[s] =
        at.chunk.IsToken(i) ? static_cast<uint32_t>(at.chunk.Position(i)) : at.Oldest(i);
    SlotBlock<float>(slots.bounds, slot)[s] = IsApart(i) ? kNotJoined : at.Bound(i);
    SlotPartner(slot) = at.Partner(i);
  }
};

}  // namespace ovq::kernels
