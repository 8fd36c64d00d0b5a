// Guesses what follows a sequence from the sequence itself: after the longest end of it that it has
// had before, what came then (prompt lookup; Saxena, 2023). A guess costs no model. How far the
// last ones were right, by the length of what repeats, says how far the next ones may be trusted.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace ovq {

// Tokens that somebody expects to follow.
struct DraftTokens {
  std::span<const int32_t> tokens;
  std::span<const float> probabilities;  // of each to be right if those before it are
};

class NgramDrafter {
 public:
  // The tokens that are looked through: the last ones, so many at least and twice as many at most.
  static constexpr size_t kWindow = 32768;
  static constexpr int64_t kMaxDraftTokens = 31;

  void Add(std::span<const int32_t> tokens);
  void Add(int32_t token);
  // What may follow, at most `most` and kMaxDraftTokens of them; good until the next call of
  // Propose.
  DraftTokens Propose(int64_t most);

 private:
  // Ends of these lengths are looked up, the longest first; of places where one stood, the last.
  static constexpr std::array<size_t, 4> kLengths = {16, 8, 4, 2};
  static constexpr size_t kMostLength = 64;  // of a repeat, as far as it is counted

  // How often the token after a repeat was the one that followed before.
  struct Record {
    float right = 1, all = 2;
    float probability() const { return right / all; }
    void Add(bool was_right);
  };
  Record& RecordFor(size_t length);
  uint64_t Place(size_t length) const;  // in the table, of the tokens' end
  void Find();
  void Enter();
  void Rebuild();

  std::vector<int32_t> tokens_;
  std::vector<uint32_t> table_;  // where in the tokens an end was followed; 0: nowhere
  // The tokens' end stands before tokens_[next_] too, as many of them as length_; 0: none does.
  size_t next_ = 0, length_ = 0;
  std::array<Record, 8> records_;  // by the bits of the length
  std::vector<int32_t> draft_;
  std::vector<float> probabilities_;
};

}  // namespace ovq
