// Reference implementation of closest-pair attention: every merge compares every pair of
// candidates, in plain loops and double precision. It shares the state's layout with the other
// devices, but no code that decides or computes. It keeps of bounds and partners only whether a
// candidate is there.
//   o = softmax([beta q Dk^T + ln c, beta q K^T]) [Dv; V]
//   (i, j) = argmin |k_i - k_j|^2 + w K / V |v_i - v_j|^2 + lambda (s_i + s_j)
//   s = 1 - |k|^2, 0 if that is at most 1 / 16
//   slot = (c_i slot_i + c_j slot_j) / (c_i + c_j)
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/common/block_attention.h"
#include "tests/reference/mixers/attention_ref.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels {
namespace {

// State of a place: empty (also a token's place before the token), a candidate, or a slot that has
// not joined.
enum class SlotState : uint8_t { kEmpty, kCandidate, kNotJoined };
constexpr double kMaxSizeChange = 2;

// Place of a candidate: a slot of the dictionary, a token of the chunk, or a mean of the chunk.
struct PlaceRef {
  enum Part : uint8_t { kSlot, kToken, kMean } part;
  int64_t index;
};

int Slot(const PlaceRef& at) { return static_cast<int>(at.index % kBlockSlots); }

double SquaredDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) {
    sum += (static_cast<double>(a[c]) - b[c]) * (static_cast<double>(a[c]) - b[c]);
  }
  return sum;
}
double SquaredNorm(const std::vector<float>& row) {
  return SquaredDistance(row, std::vector<float>(row.size()));
}

// Variance of the keys of unit norm whose mean is `key`.
double Variance(const std::vector<float>& key) {
  const double variance = 1 - SquaredNorm(key);
  return variance > 0.0625 ? variance : 0;
}

class DictionaryRef {
 public:
  DictionaryRef(const ClosestPairArgs& args, const TokenRef& token, int64_t slot_cap)
      : args_(args),
        token_(token),
        length_(args.blocks.wave_span),
        begin_(token.position / length_ * length_),
        cap_(slot_cap),
        pinned_(std::min<int64_t>(args.rule.pinned_tokens, slot_cap / 4)),
        recent_(std::min<int64_t>(args.rule.recent_tokens, slot_cap / 2)),
        n_slots_(std::min(begin_, cap_)),
        n_slots_next_(std::min(begin_ + length_, cap_)) {}

  int64_t n_slots() const { return n_slots_; }

  void PassToken() {
    const int64_t seen = token_.position + 1, offset = seen - begin_;
    for (int64_t i = Joined(seen - 1); i < Joined(seen); ++i) {
      if (i == 0) ValueSize() = static_cast<float>(MeasureValueSize(FirstTokens(seen)));
      const PlaceRef at = TokenPlace(i);
      if (i < pinned_ || at.index < 0) continue;
      SetState(at, SlotState::kCandidate);
      OldestAt(at) = static_cast<uint32_t>(i);
    }
    const int64_t due = n_slots_ + length_ - n_slots_next_;
    for (int64_t merge = 0; merge < due; ++merge) {
      // Merges come two a token, the last with the chunk's last token: this is the offset of merge
      // number `merge`.
      const int64_t comes = length_ - (due - merge - 1) / 2;
      if (comes != offset) continue;
      if (merge == 0) UpdateValueSize();
      MergeClosest(merge);
    }
    if (offset == length_) EndChunk(due > 0);
  }

 private:
  int64_t Joined(int64_t position) const {
    return std::max<int64_t>(0, std::min(position - recent_, 2 * position - cap_));
  }
  // Place of a token that has not joined yet; index -1: none, in an invalid state.
  PlaceRef TokenPlace(int64_t token) const {
    if (token >= begin_) return {PlaceRef::kToken, token - begin_};
    for (int64_t row = token < pinned_ ? 0 : pinned_; row < n_slots_; ++row) {
      const PlaceRef at = {PlaceRef::kSlot, row};
      if (GetState(at) == SlotState::kNotJoined && Oldest(at) == static_cast<uint32_t>(token))
        return at;
    }
    return {PlaceRef::kSlot, -1};
  }
  std::vector<PlaceRef> FirstTokens(int64_t n) const {
    std::vector<PlaceRef> places;
    for (int64_t token = 0; token < n; ++token) places.push_back(TokenPlace(token));
    return places;
  }
  // All candidates, the oldest first.
  std::vector<PlaceRef> Candidates() {
    std::vector<PlaceRef> places;
    for (const PlaceRef::Part part : {PlaceRef::kSlot, PlaceRef::kToken, PlaceRef::kMean}) {
      const int64_t n = part == PlaceRef::kSlot ? n_slots_ : length_;
      for (int64_t i = 0; i < n; ++i) {
        if (GetState({part, i}) == SlotState::kCandidate) places.push_back({part, i});
      }
    }
    std::ranges::sort(places, {}, [&](const PlaceRef& at) { return Oldest(at); });
    return places;
  }

  template <class T = std::byte>
  T* Block(const PlaceRef& at, const StatePlace& slots, const StatePlace& work) const {
    const int64_t block = at.index / kBlockSlots, tokens = NumBlocks(length_);
    if (at.part == PlaceRef::kSlot) return slots.At<T>(token_.session, token_.kv_head, block);
    return work.At<T>(token_.session, token_.kv_head,
                      at.part == PlaceRef::kMean ? tokens + block : block);
  }
  std::byte* Keys(const PlaceRef& at) const {
    return Block(at, args_.blocks.dictionary_keys.place, args_.places.work_keys);
  }
  std::byte* Values(const PlaceRef& at) const {
    return Block(at, args_.blocks.dictionary_values.place, args_.places.work_values);
  }
  // A candidate is stored as stale, with a bound that is never too high, so that other devices can
  // continue from here.
  SlotState GetState(const PlaceRef& at) const {
    if (Partner(at) != 0) return SlotState::kCandidate;
    return Bound(at) < 0 ? SlotState::kNotJoined : SlotState::kEmpty;
  }
  void SetState(const PlaceRef& at, SlotState is) const {
    Partner(at) = is == SlotState::kCandidate ? -1 : 0;
    Bound(at) = is == SlotState::kNotJoined ? -1.0f : 0.0f;
  }
  int32_t& Partner(const PlaceRef& at) const {
    return Block<int32_t>(at, args_.places.slots.partners,
                          args_.places.work.partners)[at.index % kBlockSlots];
  }
  float& Bound(const PlaceRef& at) const {
    return Block<float>(at, args_.places.slots.bounds,
                        args_.places.work.bounds)[at.index % kBlockSlots];
  }
  uint32_t Count(const PlaceRef& at) const {
    if (at.part == PlaceRef::kToken) return 1;
    return Block<uint32_t>(at, args_.blocks.counts,
                           args_.places.work_counts)[at.index % kBlockSlots];
  }
  // Position of its oldest token; a mean has that of its older part.
  uint32_t Oldest(const PlaceRef& at) const {
    if (at.part == PlaceRef::kToken) return static_cast<uint32_t>(begin_ + at.index);
    return OldestAt(at);
  }
  uint32_t& OldestAt(const PlaceRef& at) const {
    return Block<uint32_t>(at, args_.places.slots.oldest,
                           args_.places.work.oldest)[at.index % kBlockSlots];
  }
  float& ValueSize() const {
    return *args_.places.value_size.At<float>(token_.session, token_.kv_head);
  }

  std::vector<float> Key(const PlaceRef& at) const {
    std::vector<float> key(static_cast<size_t>(args_.blocks.shape.head_dim));
    LoadKey(Keys(at), args_.blocks.dtype, args_.blocks.shape.head_dim, Slot(at), key.data());
    return key;
  }
  std::vector<float> Value(const PlaceRef& at) const {
    const int dv = args_.blocks.shape.value_head_dim;
    std::vector<float> value(static_cast<size_t>(dv));
    LoadValue(Values(at), args_.blocks.dtype, dv, ValueStride(dv), Slot(at), value.data());
    return value;
  }

  // V over these candidates; V / K if K is measured.
  double MeasureValueSize(const std::vector<PlaceRef>& places) const {
    double values = 0, keys = 0;
    for (const PlaceRef& at : places) {
      values += SquaredNorm(Value(at));
      keys += SquaredNorm(Key(at));
    }
    const double units = args_.rule.key_size > 0 ? static_cast<double>(places.size()) : keys;
    return units > 0 ? values / units : 0;
  }
  void UpdateValueSize() {
    const double size = MeasureValueSize(Candidates());
    if (size > kMaxSizeChange * ValueSize() || ValueSize() > kMaxSizeChange * size) {
      ValueSize() = static_cast<float>(size);
    }
  }

  void MergeClosest(int64_t merge) {
    const std::vector<PlaceRef> places = Candidates();
    std::vector<std::vector<float>> keys, values;
    for (const PlaceRef& at : places) {
      keys.push_back(Key(at));
      values.push_back(Value(at));
    }
    if (places.size() < 2) return;
    const double key_size = args_.rule.key_size > 0 ? args_.rule.key_size : 1;
    const double weight = ValueSize() > 0 ? args_.rule.value_weight * key_size / ValueSize() : 0;
    double closest = std::numeric_limits<double>::infinity();
    size_t low = 0, high = 1;
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t j = i + 1; j < places.size(); ++j) {
        const double distance = SquaredDistance(keys[i], keys[j]) +
                                weight * SquaredDistance(values[i], values[j]) +
                                args_.rule.merge_variance * (Variance(keys[i]) + Variance(keys[j]));
        if (distance < closest) {
          closest = distance;
          low = i;
          high = j;
        }
      }
    }
    const uint64_t a = Count(places[low]), b = Count(places[high]);
    SetState(places[low], SlotState::kEmpty);
    SetState(places[high], SlotState::kEmpty);
    const PlaceRef mean = {PlaceRef::kMean, merge};
    const uint32_t ends = Oldest(places[high]);
    const double share = static_cast<double>(b) / static_cast<double>(a + b);
    Store(mean, ends, keys[low], keys[high], share, /*is_value=*/false);
    Store(mean, ends, values[low], values[high], share, /*is_value=*/true);
    Block<uint32_t>(mean, args_.blocks.counts, args_.places.work_counts)[Slot(mean)] =
        static_cast<uint32_t>(std::min<uint64_t>(a + b, std::numeric_limits<uint32_t>::max()));
    OldestAt(mean) = Oldest(places[low]);
    SetState(mean, SlotState::kCandidate);
  }

  // Stores the mean of two slots in the state's dtype. Its random bits are keyed by the oldest
  // token of the younger slot.
  void Store(const PlaceRef& mean, uint32_t ends, const std::vector<float>& low,
             const std::vector<float>& high, double share, bool is_value) {
    const AttentionBlocks& blocks = args_.blocks;
    // In float32, as the format says: a random bit may lie so near the fraction of a mean of three
    // tokens that its double rounds to another byte.
    std::vector<double> row;
    for (size_t c = 0; c < low.size(); ++c) {
      row.push_back(low[c] + static_cast<float>(share) * (high[c] - low[c]));
    }
    StoreMeanRef(row, {blocks.layer, token_.kv_head, ends, is_value, begin_ / length_},
                 blocks.dtype, is_value ? Values(mean) : Keys(mean),
                 is_value ? ValueStride(blocks.shape.value_head_dim) : blocks.shape.head_dim,
                 Slot(mean));
  }

  // Moves the tokens and means that are left into free slots, then into new ones.
  void EndChunk(bool merges) {
    int64_t slot = merges ? 0 : n_slots_;
    for (const PlaceRef::Part part : {PlaceRef::kToken, PlaceRef::kMean}) {
      for (int64_t i = 0; i < length_; ++i) {
        const PlaceRef at = {part, i};
        const int64_t token = begin_ + i;
        if (part == PlaceRef::kToken && (token < pinned_ || token >= Joined(begin_ + length_))) {
          SetState(at, SlotState::kNotJoined);
        }
        if (GetState(at) == SlotState::kEmpty) continue;
        while (merges && slot < n_slots_ && GetState({PlaceRef::kSlot, slot}) != SlotState::kEmpty)
          ++slot;
        MoveTo({PlaceRef::kSlot, slot++}, at);
        SetState(at, SlotState::kEmpty);
      }
    }
  }

  void MoveTo(const PlaceRef& row, const PlaceRef& from) {
    const AttentionBlocks& blocks = args_.blocks;
    const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
    StoreKey(Key(from).data(), d, blocks.dtype, Keys(row), Slot(row));
    StoreValue(Value(from).data(), dv, ValueStride(dv), blocks.dtype, Values(row), Slot(row));
    const uint32_t count = Count(from);
    Block<uint32_t>(row, blocks.counts, {})[Slot(row)] = count;
    Block<float>(row, blocks.log_counts, {})[Slot(row)] =
        static_cast<float>(BiasRef(args_, token_, row.index));
    OldestAt(row) = Oldest(from);
    SetState(row, GetState(from));
  }

  const ClosestPairArgs& args_;
  const TokenRef& token_;
  const int64_t length_, begin_, cap_, pinned_, recent_, n_slots_, n_slots_next_;
};

}  // namespace

void ClosestPairRef(DeviceContext&, const ClosestPairArgs& args) {
  ForEachTokenRef(args, [&](const TokenRef& token) {
    DictionaryRef dictionary(args, token,
                             args.blocks.live.HeadSlotCap(token.sequence, token.kv_head));
    const auto offset = static_cast<int>(token.position % args.blocks.wave_span);
    StoreTokenRef(args, token, KeyRef(args, token), offset);
    std::vector<SlotRef> slots;
    for (int64_t j = 0; j < dictionary.n_slots(); ++j) {
      slots.push_back(DictionarySlotRef(args, token, j));
    }
    for (int i = 0; i <= offset; ++i) slots.push_back(RecentSlotRef(args, token, i));
    AttendTokenRef(args, token, slots);
    dictionary.PassToken();
  });
}

const ReferenceOf<ClosestPairCpu> kClosestPair = ClosestPairRef;

}  // namespace ovq::kernels
