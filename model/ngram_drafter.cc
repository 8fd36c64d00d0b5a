#include "model/ngram_drafter.h"

#include <algorithm>
#include <bit>

namespace ovq::model {

void NgramDrafter::Record::Add(bool was_right) {
  constexpr float kRecordWindow = 64;
  if (all >= kRecordWindow) right /= 2, all /= 2;
  right += was_right ? 1.0f : 0.0f;
  ++all;
}

NgramDrafter::Record& NgramDrafter::RecordFor(size_t length) {
  return records_[std::min<size_t>(std::bit_width(length), records_.size() - 1)];
}

uint64_t NgramDrafter::Place(size_t length) const {
  uint64_t hash = length;
  for (auto token = tokens_.end() - static_cast<std::ptrdiff_t>(length); token != tokens_.end();
       ++token) {
    hash = (hash ^ static_cast<uint32_t>(*token)) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
  }
  return hash & (table_.size() - 1);
}

void NgramDrafter::Add(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens.last(std::min(tokens.size(), kWindow))) Add(token);
}

void NgramDrafter::Add(int32_t token) {
  if (next_ > 0) {
    const bool right = tokens_[next_] == token;
    RecordFor(length_).Add(right);
    next_ = right ? next_ + 1 : 0;
    length_ = right ? std::min(length_ + 1, kMostLength) : 0;
  }
  tokens_.push_back(token);
  if (tokens_.size() >= 2 * kWindow || table_.size() < 2 * kLengths.size() * tokens_.size()) {
    Rebuild();
  }
  Find();
  Enter();
}

// A repeat that continues is replaced by a longer one only.
void NgramDrafter::Find() {
  for (const size_t length : kLengths) {
    if (length_ >= length) return;
    if (tokens_.size() < length) continue;
    const size_t next = table_[Place(length)];
    if (next == 0) continue;
    size_t same = 0;  // verified token by token, as suffixes may share a place in the table
    while (same < std::min(next, kMostLength) &&
           tokens_[next - 1 - same] == tokens_[tokens_.size() - 1 - same]) {
      ++same;
    }
    if (same < length) continue;
    next_ = next;
    length_ = same;
    return;
  }
}

void NgramDrafter::Enter() {
  for (const size_t length : kLengths) {
    if (tokens_.size() >= length) table_[Place(length)] = static_cast<uint32_t>(tokens_.size());
  }
}

// Makes room for twice as many tokens, or keeps the window's alone.
void NgramDrafter::Rebuild() {
  std::vector<int32_t> all;
  all.swap(tokens_);
  const size_t kept = std::min(all.size(), kWindow), gone = all.size() - kept;
  next_ = next_ > gone ? next_ - gone : 0;
  if (next_ == 0) length_ = 0;
  table_.assign(std::min(std::bit_ceil(4 * kLengths.size() * std::max<size_t>(kept, 64)),
                         std::bit_ceil(4 * kLengths.size() * kWindow)),
                0);
  tokens_.reserve(2 * kept);
  for (size_t i = gone; i < all.size(); ++i) {
    tokens_.push_back(all[i]);
    if (i + 1 < all.size()) Enter();  // the final suffix is looked up before it is entered
  }
}

DraftTokens NgramDrafter::Propose(int64_t most) {
  draft_.clear();
  probabilities_.clear();
  const auto n = static_cast<size_t>(std::clamp<int64_t>(most, 0, kMaxDraftTokens));
  if (next_ == 0) return {};
  const size_t distance = tokens_.size() - next_;  // longer drafts cycle
  for (size_t i = 0; i < n; ++i) {
    draft_.push_back(i < distance ? tokens_[next_ + i] : draft_[i - distance]);
    probabilities_.push_back(RecordFor(std::min(length_ + i, kMostLength)).probability());
  }
  return {draft_, probabilities_};
}

}  // namespace ovq::model
