// The ground truth of closest-pair attention: every merge compares every pair of candidates, in
// plain loops and double precision. It shares the layout of the state with the other devices and
// nothing that decides or computes; of partners and bounds it keeps what is there at all.
//   o = softmax([beta q Dk^T + ln c, beta q K^T]) [Dv; V]
//   (i, j) = argmin |k_i - k_j|^2 + w K / V |v_i - v_j|^2
//   row = (c_i row_i + c_j row_j) / (c_i + c_j)
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/common/attention_ref.h"
#include "kernels/mixers/common/block_attention.h"

namespace ovq {
namespace {

// What there is in a place: nothing or, of the chunk's tokens, nothing yet; a candidate; a row that
// is none.
enum class Is : uint8_t { kNothing, kCandidate, kApart };
constexpr double kSizeChange = 2;

// Where a candidate lies: block and slot of the rows, of the chunk's tokens or of its means.
struct PlaceRef {
  enum Part : uint8_t { kRow, kToken, kMean } part;
  int64_t index;
};

class DictionaryRef {
 public:
  DictionaryRef(const ClosestPairStep& step, const TokenRef& token, int64_t slot_cap)
      : step_(step),
        token_(token),
        length_(step.blocks.wave_span),
        begin_(token.position / length_ * length_),
        cap_(slot_cap),
        pinned_(std::min<int64_t>(step.rule.pinned_tokens, slot_cap / 4)),
        recent_(std::min<int64_t>(step.rule.recent_tokens, slot_cap / 2)),
        n_rows_(std::min(begin_, cap_)),
        n_next_(std::min(begin_ + length_, cap_)) {}

  int64_t n_rows() const { return n_rows_; }

  void PassToken() {
    const int64_t seen = token_.position + 1, offset = seen - begin_;
    for (int64_t i = Joined(seen - 1); i < Joined(seen); ++i) {
      if (i == 0) Size() = static_cast<float>(SizeOf(FirstTokens(seen)));
      const PlaceRef at = TokenPlace(i);
      if (i < pinned_ || at.index < 0) continue;
      Make(at, Is::kCandidate);
      OldestAt(at) = static_cast<uint32_t>(i);
    }
    const int64_t due = n_rows_ + length_ - n_next_;
    for (int64_t merge = 0; merge < due; ++merge) {
      // Merge number `merge` comes with the token after which so many, by two a token, are left.
      const int64_t comes = length_ - (due - merge - 1) / 2;
      if (comes != offset) continue;
      if (merge == 0) UpdateSize();
      MergeClosest(merge);
    }
    if (offset == length_) EndChunk(due > 0);
  }

 private:
  int64_t Joined(int64_t position) const {
    return std::max<int64_t>(0, std::min(position - recent_, 2 * position - cap_));
  }
  // Of a token that has not joined yet; index -1: none, in a state that no sequence leaves.
  PlaceRef TokenPlace(int64_t token) const {
    if (token >= begin_) return {PlaceRef::kToken, token - begin_};
    for (int64_t row = token < pinned_ ? 0 : pinned_; row < n_rows_; ++row) {
      const PlaceRef at = {PlaceRef::kRow, row};
      if (What(at) == Is::kApart && Oldest(at) == static_cast<uint32_t>(token)) return at;
    }
    return {PlaceRef::kRow, -1};
  }
  std::vector<PlaceRef> FirstTokens(int64_t n) const {
    std::vector<PlaceRef> places;
    for (int64_t token = 0; token < n; ++token) places.push_back(TokenPlace(token));
    return places;
  }
  // The oldest first.
  std::vector<PlaceRef> Candidates() {
    std::vector<PlaceRef> places;
    for (const PlaceRef::Part part : {PlaceRef::kRow, PlaceRef::kToken, PlaceRef::kMean}) {
      const int64_t n = part == PlaceRef::kRow ? n_rows_ : length_;
      for (int64_t i = 0; i < n; ++i) {
        if (What({part, i}) == Is::kCandidate) places.push_back({part, i});
      }
    }
    std::ranges::sort(places, {}, [&](const PlaceRef& at) { return Oldest(at); });
    return places;
  }

  template <class T = std::byte>
  T* Block(const PlaceRef& at, const StatePlace& rows, const StatePlace& work) const {
    const int64_t block = at.index / kBlockSlots, tokens = BlocksOf(length_);
    if (at.part == PlaceRef::kRow) return rows.At<T>(token_.session, token_.kv_head, block);
    return work.At<T>(token_.session, token_.kv_head,
                      at.part == PlaceRef::kMean ? tokens + block : block);
  }
  std::byte* Keys(const PlaceRef& at) const {
    return Block(at, step_.blocks.dictionary_keys.place, step_.places.work_keys);
  }
  std::byte* Values(const PlaceRef& at) const {
    return Block(at, step_.blocks.dictionary_values.place, step_.places.work_values);
  }
  // The partner that is not known, as no bound below 0 is, lets other devices go on from here.
  Is What(const PlaceRef& at) const {
    if (Partner(at) != 0) return Is::kCandidate;
    return Bound(at) < 0 ? Is::kApart : Is::kNothing;
  }
  void Make(const PlaceRef& at, Is is) const {
    Partner(at) = is == Is::kCandidate ? -1 : 0;
    Bound(at) = is == Is::kApart ? -1.0f : 0.0f;
  }
  int32_t& Partner(const PlaceRef& at) const {
    return Block<int32_t>(at, step_.places.rows.partners,
                          step_.places.work.partners)[at.index % kBlockSlots];
  }
  float& Bound(const PlaceRef& at) const {
    return Block<float>(at, step_.places.rows.bounds,
                        step_.places.work.bounds)[at.index % kBlockSlots];
  }
  uint32_t Count(const PlaceRef& at) const {
    if (at.part == PlaceRef::kToken) return 1;
    return Block<uint32_t>(at, step_.blocks.counts,
                           step_.places.work_counts)[at.index % kBlockSlots];
  }
  // Where it was first said; a mean's is that of its older part.
  uint32_t Oldest(const PlaceRef& at) const {
    if (at.part == PlaceRef::kToken) return static_cast<uint32_t>(begin_ + at.index);
    return OldestAt(at);
  }
  uint32_t& OldestAt(const PlaceRef& at) const {
    return Block<uint32_t>(at, step_.places.rows.oldest,
                           step_.places.work.oldest)[at.index % kBlockSlots];
  }
  float& Size() const { return *step_.places.value_size.At<float>(token_.session, token_.kv_head); }

  std::vector<float> Key(const PlaceRef& at) const {
    std::vector<float> key(static_cast<size_t>(step_.blocks.shape.head_dim));
    LoadKey(Keys(at), step_.blocks.dtype, step_.blocks.shape.head_dim, Slot(at), key.data());
    return key;
  }
  std::vector<float> Value(const PlaceRef& at) const {
    const int dv = step_.blocks.shape.value_head_dim;
    std::vector<float> value(static_cast<size_t>(dv));
    LoadValue(Values(at), step_.blocks.dtype, dv, ValueStride(dv), Slot(at), value.data());
    return value;
  }
  static int Slot(const PlaceRef& at) { return static_cast<int>(at.index % kBlockSlots); }

  static double SquaredDistance(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t c = 0; c < a.size(); ++c) {
      sum += (static_cast<double>(a[c]) - b[c]) * (static_cast<double>(a[c]) - b[c]);
    }
    return sum;
  }
  static double SquaredNorm(const std::vector<float>& row) {
    return SquaredDistance(row, std::vector<float>(row.size()));
  }
  // V of these candidates; V / K where K is measured.
  double SizeOf(const std::vector<PlaceRef>& places) const {
    double values = 0, keys = 0;
    for (const PlaceRef& at : places) {
      values += SquaredNorm(Value(at));
      keys += SquaredNorm(Key(at));
    }
    const double units = step_.rule.key_size > 0 ? static_cast<double>(places.size()) : keys;
    return units > 0 ? values / units : 0;
  }
  void UpdateSize() {
    const double size = SizeOf(Candidates());
    if (size > kSizeChange * Size() || Size() > kSizeChange * size) {
      Size() = static_cast<float>(size);
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
    const double key_size = step_.rule.key_size > 0 ? step_.rule.key_size : 1;
    const double weight = Size() > 0 ? step_.rule.value_weight * key_size / Size() : 0;
    double closest = std::numeric_limits<double>::infinity();
    size_t low = 0, high = 1;
    for (size_t i = 0; i < places.size(); ++i) {
      for (size_t j = i + 1; j < places.size(); ++j) {
        const double distance =
            SquaredDistance(keys[i], keys[j]) + weight * SquaredDistance(values[i], values[j]);
        if (distance < closest) {
          closest = distance;
          low = i;
          high = j;
        }
      }
    }
    const uint64_t a = Count(places[low]), b = Count(places[high]);
    Make(places[low], Is::kNothing);
    Make(places[high], Is::kNothing);
    const PlaceRef mean = {PlaceRef::kMean, merge};
    const uint32_t ends = Oldest(places[high]);
    const double share = static_cast<double>(b) / static_cast<double>(a + b);
    Store(mean, ends, keys[low], keys[high], share, /*is_value=*/false);
    Store(mean, ends, values[low], values[high], share, /*is_value=*/true);
    Block<uint32_t>(mean, step_.blocks.counts, step_.places.work_counts)[Slot(mean)] =
        static_cast<uint32_t>(std::min<uint64_t>(a + b, std::numeric_limits<uint32_t>::max()));
    OldestAt(mean) = Oldest(places[low]);
    Make(mean, Is::kCandidate);
  }

  // The mean of two rows in the state's dtype. Its random bits are those of the oldest token of the
  // younger row.
  void Store(const PlaceRef& mean, uint32_t ends, const std::vector<float>& low,
             const std::vector<float>& high, double share, bool is_value) {
    const AttentionBlocks& blocks = step_.blocks;
    std::vector<double> row;
    for (size_t c = 0; c < low.size(); ++c) row.push_back((1 - share) * low[c] + share * high[c]);
    StoreMeanRef(row, {blocks.layer, token_.kv_head, ends, is_value, begin_ / length_},
                 blocks.dtype, is_value ? Values(mean) : Keys(mean),
                 is_value ? ValueStride(blocks.shape.value_head_dim) : blocks.shape.head_dim,
                 Slot(mean));
  }

  // What is left of tokens and means fills the slots of the rows that are gone, then new ones.
  void EndChunk(bool merges) {
    int64_t slot = merges ? 0 : n_rows_;
    for (const PlaceRef::Part part : {PlaceRef::kToken, PlaceRef::kMean}) {
      for (int64_t i = 0; i < length_; ++i) {
        const PlaceRef at = {part, i};
        const int64_t token = begin_ + i;
        if (part == PlaceRef::kToken && (token < pinned_ || token >= Joined(begin_ + length_))) {
          Make(at, Is::kApart);
        }
        if (What(at) == Is::kNothing) continue;
        while (merges && slot < n_rows_ && What({PlaceRef::kRow, slot}) != Is::kNothing) ++slot;
        MoveTo({PlaceRef::kRow, slot++}, at);
        Make(at, Is::kNothing);
      }
    }
  }

  void MoveTo(const PlaceRef& row, const PlaceRef& from) {
    const AttentionBlocks& blocks = step_.blocks;
    const int d = blocks.shape.head_dim, dv = blocks.shape.value_head_dim;
    StoreKey(Key(from).data(), d, blocks.dtype, Keys(row), Slot(row));
    StoreValue(Value(from).data(), dv, ValueStride(dv), blocks.dtype, Values(row), Slot(row));
    const uint32_t count = Count(from);
    Block<uint32_t>(row, blocks.counts, {})[Slot(row)] = count;
    Block<float>(row, blocks.log_counts, {})[Slot(row)] =
        static_cast<float>(std::log(static_cast<double>(count)));
    OldestAt(row) = Oldest(from);
    Make(row, What(from));
  }

  const ClosestPairStep& step_;
  const TokenRef& token_;
  const int64_t length_, begin_, cap_, pinned_, recent_, n_rows_, n_next_;
};

}  // namespace

void ClosestPairRef(DeviceContext&, const ClosestPairStep& step) {
  ForEachTokenRef(step, [&](const TokenRef& token) {
    DictionaryRef dictionary(step, token, step.blocks.live.CapOf(token.sequence, token.kv_head));
    const auto offset = static_cast<int>(token.position % step.blocks.wave_span);
    StoreTokenRef(step, token, KeyRef(step, token), offset);
    std::vector<SlotRef> slots;
    for (int64_t j = 0; j < dictionary.n_rows(); ++j) {
      slots.push_back(DictionarySlotRef(step, token, j));
    }
    for (int i = 0; i <= offset; ++i) slots.push_back(RecentSlotRef(step, token, i));
    AttendTokenRef(step, token, slots);
    dictionary.PassToken();
  });
}

}  // namespace ovq
