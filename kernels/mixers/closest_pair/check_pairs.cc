// Checks closest-pair states that come from outside: all that the kernels rely on.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/mixers/closest_pair/closest_pair.h"
#include "kernels/mixers/closest_pair/schedule.h"
#include "kernels/mixers/state_check.h"

namespace ovq::kernels {
namespace {

using enum PairFields::Fixed;
using enum PairFields::Block;

// Checker of one head.
class Head {
 public:
  Head(const ClosestPairConfig& config, const LayerBytes& layer, int head)
      : layer_(layer),
        head_(head),
        offset_(static_cast<int32_t>(layer.position % config.chunk_len)) {
    const Growth& growth = layer.state.growth;
    const int64_t begin = layer.position - offset_;
    chunk_ = {.session = nullptr,
              .kv_head = head,
              .begin = begin,
              .length = config.chunk_len,
              .slot_cap = layer.head_part(head).own_cap,
              .n_slots = static_cast<int32_t>(layer.head_part(head).live),
              .n_slots_next = static_cast<int32_t>(
                  growth.live(begin + config.chunk_len, layer.head_part(head).own_cap)),
              .rule = config.rule};
  }

  absl::Status Check() const {
    // Expected numbers at this position: every token is in a slot, a candidate or both, except
    // those that were merged away.
    const int64_t joined = chunk_.JoinedAt(offset_),
                  pinned = chunk_.rule.EffectivePinnedTokens(chunk_.slot_cap),
                  first = std::max(joined, pinned),  // first token that has not joined but will
        n_unjoined = std::min(pinned, chunk_.begin) + std::max<int64_t>(0, chunk_.begin - first),
                  n_tokens = std::max<int64_t>(0, joined - std::max(chunk_.begin, pinned)),
                  n_means = chunk_.MergedAt(offset_),
                  n_candidates = chunk_.n_slots - n_unjoined + n_tokens - n_means;
    std::vector<bool> found(static_cast<size_t>(std::max<int64_t>(0, chunk_.begin - first)));
    int64_t apart = 0, candidates = 0;
    for (int32_t i = 0; i < chunk_.end(); ++i) {
      const int32_t partner = Partner(i), token = i - chunk_.first_token(),
                    mean = i - chunk_.first_merged();
      const bool is_slot = i < chunk_.n_slots, is_mean = mean >= 0 && mean < n_means;
      if ((is_slot || is_mean) && Count(i) == 0) return Wrong("count", i, 0, "1 or more");
      if (partner != 0) {
        const bool joins = token >= 0 && token < offset_ && chunk_.begin + token < joined &&
                           !chunk_.IsPinned(chunk_.begin + token);
        if (!is_slot && !is_mean && !joins) return Wrong("partner", i, partner, "0");
        if (!(Bound(i) >= 0)) return Wrong("bound", i, Bound(i), "0 or more");
        if (partner != kStalePartner && !IsOther(i, int64_t{partner} - 1)) {
          return Wrong("partner", i, partner, "-1, 0 or another candidate, from 1 on");
        }
        ++candidates;
      } else if (is_slot && Bound(i) == kNotJoined) {
        ++apart;
        RETURN_IF_ERROR(CheckUnjoined(i, first, found));
      } else if (is_slot && !chunk_.HasMerged() && n_means == 0) {
        return Wrong("partner", i, partner, "that of a candidate, as none has merged");
      }
    }
    if (candidates == n_candidates && apart == n_unjoined) return absl::OkStatus();
    return Damaged(absl::StrCat(candidates, " candidates and ", apart,
                                " rows beside them, expected ", n_candidates, " and ", n_unjoined));
  }

 private:
  // Checks a slot that has not joined: its token is one that has yet to join, and no other slot's.
  absl::Status CheckUnjoined(int32_t row, int64_t first, std::vector<bool>& found) const {
    if (chunk_.IsPinned(row)) return absl::OkStatus();
    const uint32_t token = chunk_.HasMerged() ? Oldest(row) : static_cast<uint32_t>(row),
                   place = token - static_cast<uint32_t>(first);
    if (place >= found.size() || found[place]) {
      return Wrong("oldest token", row, token,
                   absl::StrCat("one of ", found.size(), " from ", first, " on, once"));
    }
    found[place] = true;
    return absl::OkStatus();
  }

  bool IsOther(int32_t i, int64_t other) const {
    return other >= 0 && other < chunk_.end() && other != i &&
           Partner(static_cast<int32_t>(other)) != 0;
  }
  template <class T>
  T At(PairFields::Block of_rows, PairFields::Fixed of_work, int32_t i) const {
    const int32_t block = i / kBlockSlots, slot = i % kBlockSlots, work = 2 * chunk_.work_blocks();
    if (block < chunk_.slot_blocks()) {
      return layer_.Block<T>(head_ * kOfHead + of_rows, block)[slot];
    }
    return layer_.Fixed<T>(
        of_work)[(head_ * work + block - chunk_.slot_blocks()) * kBlockSlots + slot];
  }
  uint32_t Count(int32_t i) const { return At<uint32_t>(kCounts, kWorkCounts, i); }
  uint32_t Oldest(int32_t i) const { return At<uint32_t>(kOldest, kWorkOldest, i); }
  float Bound(int32_t i) const { return At<float>(kBounds, kWorkBounds, i); }
  int32_t Partner(int32_t i) const { return At<int32_t>(kPartners, kWorkPartners, i); }

  absl::Status Damaged(const std::string& what) const {
    return absl::DataLossError(absl::StrCat("head ", head_, ": ", what));
  }
  template <class T>
  absl::Status Wrong(const char* what, int32_t i, T value, const std::string& expected) const {
    const bool is_slot = i < chunk_.first_token();
    return Damaged(absl::StrCat(what, " of ", is_slot ? "row " : "work slot ",
                                is_slot ? i : i - chunk_.first_token(), " is ", value,
                                ", expected ", expected));
  }

  const LayerBytes& layer_;
  const int head_;
  const int32_t offset_;  // tokens of the chunk
  PairChunk chunk_;
};

}  // namespace

absl::Status CheckPairs(const ClosestPairConfig& config, const LayerBytes& layer) {
  absl::Status status;
  for (int head = 0; head < config.shape.n_kv_heads && status.ok(); ++head) {
    status = Head(config, layer, head).Check();
  }
  return status;
}

}  // namespace ovq::kernels
