// Layout of a chunk's merge candidates and the arithmetic of a merge, shared by the CPU and CUDA
// kernels.
#pragma once

#include <cstdint>

#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/common/block_attention.h"
#include "kernels/mixers/common/slots.h"
#include "kernels/mixers/common/stochastic_rounding.h"

namespace ovq {

inline constexpr float kMaxPairSizeChange = 2.0f;  // factor; V is measured again beyond it
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

// Accessors of one head's candidates by index. A candidate lives in a block of slots, of the
// chunk's
// tokens or of its means. T is the type of keys and values.
template <class T>
struct PairBlocks {
  const AttentionBlocks& blocks;
  const PairPlaces& places;
  PairChunk chunk;

  template <class U>
  constexpr U* At(const StatePlace& row, const StatePlace& work, int32_t block) const {
    const int32_t slots = chunk.slot_blocks();
    return block < slots ? row.At<U>(chunk.session, chunk.kv_head, block)
                         : work.At<U>(chunk.session, chunk.kv_head, block - slots);
  }
  constexpr T* keys(int32_t block) const {
    return At<T>(blocks.dictionary_keys.place, places.work_keys, block);
  }
  constexpr T* values(int32_t block) const {
    return At<T>(blocks.dictionary_values.place, places.work_values, block);
  }
  constexpr uint32_t* counts(int32_t block) const {
    return At<uint32_t>(blocks.counts, places.work_counts, block);
  }
  constexpr float* bounds(int32_t block) const {
    return At<float>(places.slots.bounds, places.work.bounds, block);
  }
  constexpr int32_t* partners(int32_t block) const {
    return At<int32_t>(places.slots.partners, places.work.partners, block);
  }
  constexpr uint32_t* oldest(int32_t block) const {
    return At<uint32_t>(places.slots.oldest, places.work.oldest, block);
  }
  constexpr float& value_size() const {
    return *places.value_size.At<float>(chunk.session, chunk.kv_head);
  }
  constexpr bool measures_keys() const { return chunk.rule.key_size == 0; }
  // |key|^2 of a candidate; 0 if K is a constant and thus not measured.
  constexpr float KeySize(int32_t i) const {
    float sum = 0;
    for (int c = 0; measures_keys() && c < d(); ++c) {
      const float x = KeySlot(i)[c];
      sum += x * x;
    }
    return sum;
  }
  // value_size() from sums over n candidates: of |value|^2 and, if measures_keys(), of |key|^2.
  template <class Sum>
  constexpr float MeasureValueSize(Sum values, Sum keys, Sum n) const {
    if (!measures_keys()) return static_cast<float>(values / n);
    return keys > 0 ? static_cast<float>(values / keys) : 0.0f;
  }
  // Weight of values in distances: w K / V.
  constexpr float ValueScale() const {
    const float size = value_size(), key_size = measures_keys() ? 1.0f : chunk.rule.key_size;
    return size > 0 ? chunk.rule.value_weight * key_size / size : 0.0f;
  }

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
  constexpr bool IsToken(int32_t i) const {
    return i >= chunk.first_token() && i < chunk.first_merged();
  }
  constexpr uint32_t Count(int32_t i) const {
    return IsToken(i) ? 1 : counts(i / kBlockSlots)[i % kBlockSlots];
  }
  constexpr uint32_t& Oldest(int32_t i) const { return oldest(i / kBlockSlots)[i % kBlockSlots]; }
  constexpr unsigned long long CandidateOrder(int32_t one, int32_t other) const {
    return PairOrder(Oldest(one), Oldest(other));
  }
  constexpr float& Bound(int32_t i) const { return bounds(i / kBlockSlots)[i % kBlockSlots]; }
  constexpr int32_t& Partner(int32_t i) const { return partners(i / kBlockSlots)[i % kBlockSlots]; }
  constexpr bool IsSlotInUse(int32_t i) const { return Partner(i) != 0 || Bound(i) == kNotJoined; }
  // True if slot `row` holds `token` and has not joined the candidates.
  constexpr bool IsUnjoinedToken(int32_t row, int64_t token) const {
    return Oldest(row) == static_cast<uint32_t>(token) && Partner(row) == 0 &&
           Bound(row) == kNotJoined && !chunk.IsPinned(row);
  }
  // True if candidate i of the work blocks needs a slot at the chunk's end.
  constexpr bool StaysAtEnd(int32_t i) const {
    const int64_t token = chunk.begin + i - chunk.first_token();
    if (chunk.n_merges() <= 0) return i - chunk.first_token() < chunk.length;
    return Partner(i) != 0 || (i - chunk.first_token() < chunk.length && chunk.KeepsOwnSlot(token));
  }
  constexpr float BoundAtEnd(int32_t i) const {
    return IsToken(i) && chunk.KeepsOwnSlot(chunk.begin + i - chunk.first_token()) ? kNotJoined
                                                                                   : Bound(i);
  }
  // A slot's field after the chunk's end; its block may be one that the chunk adds.
  template <class U>
  constexpr U* SlotField(const StatePlace& place, int32_t slot) const {
    return place.At<U>(chunk.session, chunk.kv_head, slot / kBlockSlots);
  }
  constexpr int32_t& SlotPartner(int32_t slot) const {
    return SlotField<int32_t>(places.slots.partners, slot)[slot % kBlockSlots];
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

}  // namespace ovq
