// Drafts tokens by prompt lookup (Saxena, 2023): finds the longest suffix of the sequence that
// occurred before and proposes the tokens that followed it then. A draft costs no model. Its
// probability of being right is estimated from earlier drafts, by the length of the repeated
// suffix.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ovq::model {

// Drafted tokens.
struct DraftTokens {
  std::span<const int32_t> tokens;
  std::span<const float> probabilities;  // of each token, given that those before it are right
};

class NgramDrafter {
 public:
  // Number of recent tokens that are searched: at least this many, at most twice as many.
  static constexpr size_t kWindow = 32768;
  static constexpr int64_t kMaxDraftTokens = 31;

  void Add(std::span<const int32_t> tokens);
  void Add(int32_t token);
  // Drafts at most min(most, kMaxDraftTokens) tokens. Valid until the next call of Propose.
  DraftTokens Propose(int64_t most);

 private:
  // Lengths of the suffixes that are looked up, the longest first. The table holds the last place
  // of each.
  static constexpr std::array<size_t, 4> kLengths = {16, 8, 4, 2};
  static constexpr size_t kMostLength = 64;  // longer repeats count as this long

  // Counts how often the token after a repeated suffix was the one that had followed it before.
  struct Record {
    float right = 1, all = 2;
    float probability() const { return right / all; }
    void Add(bool was_right);
  };
  Record& RecordFor(size_t length);
  uint64_t Place(size_t length) const;  // index in table_ of the suffix of this length
  void Find();
  void Enter();
  void Rebuild();

  std::vector<int32_t> tokens_;
  std::vector<uint32_t> table_;  // index in tokens_ of what followed a suffix last; 0: none
  // The last length_ tokens also precede tokens_[next_]; 0: no repeat.
  size_t next_ = 0, length_ = 0;
  std::array<Record, 8> records_;  // by bit width of the repeat's length
  std::vector<int32_t> draft_;
  std::vector<float> probabilities_;
};

}  // namespace ovq::model
