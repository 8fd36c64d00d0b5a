// Stacks: the places of an automaton in a text, as a set of stacks that share their frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "model/constraint/automaton.h"

namespace ovq::constraint {

// The most stacks of one place, the most frames of one stack and of all stacks of a place, shared
// ones counted for each. The language of a constraint are the texts of its grammar that stay within
// kMaxDepth; no place is a dead end because of it.
inline constexpr size_t kMaxStacks = 1024;
inline constexpr int32_t kMaxDepth = 1024;
inline constexpr int64_t kMaxFrames = 1 << 15;

// An expression that goes on when what was entered above it has ended. Immutable.
struct Frame {
  int32_t expression;
  // kSequence: the part that follows. kRepeat: how many items are complete, as far as that matters.
  int64_t index;
  std::shared_ptr<const Frame> parent;  // null: the text ends behind this frame
  int32_t depth;                        // frames up to this one
  int32_t need;                         // the smallest depth within which a text ends from here
  bool counts;                          // it or one below it has an index that may be replaced
  uint64_t id;                          // of its machine
};
using FramePointer = std::shared_ptr<const Frame>;

struct Head {
  int32_t state;  // of a terminal, with bytes that lead on
  FramePointer rest;
  bool operator==(const Head&) const = default;
};

struct Stacks {
  std::vector<Head> heads;      // ascending by state, then by the frame's id; no two are equal
  bool may_end = false;         // the text so far is one of the language
  int64_t CountFrames() const;  // of all heads
  bool operator==(const Stacks&) const = default;
};

// Moves stacks over bytes. Equal frames of one machine are one object, so that equal places are
// equal. One thread.
class StackMachine {
 public:
  explicit StackMachine(std::shared_ptr<const Automaton> automaton);

  const Automaton& automaton() const { return *automaton_; }
  // False where a place would need more than kMaxStacks stacks or kMaxFrames frames; `stacks` is
  // then unspecified.
  bool Begin(Stacks& stacks);
  // The bytes around `byte` for which Step does the same.
  struct Interval {
    uint8_t first = 0, last = 255;
    bool empty = true;  // no stack goes on
  };
  Interval FindInterval(const Stacks& from, uint8_t byte) const;
  // Bit byte % 64 of word byte / 64: the bytes with which some stack goes on.
  std::array<uint64_t, 4> FindBytes(const Stacks& from) const;
  // A largest set of ASCII bytes for which Step does the same, and some stack goes on, as bits.
  // Empty for more than kMaxClassHeads stacks.
  static constexpr size_t kMaxClassHeads = 32;
  std::array<uint64_t, 2> FindAsciiClass(const Stacks& from) const;
  // from: of this machine. False as for Begin.
  bool Step(const Stacks& from, uint8_t byte, Stacks& to);
  // Items of work of the last Step, a measure of its time.
  int64_t work() const { return n_work_; }
  // The stacks of another machine of the automaton as those of this one.
  Stacks Adopt(const Stacks& stacks);
  // Stacks from which the same bytes lead on, up to `horizon` bytes: counts that no text of so few
  // bytes brings to a bound are replaced by one that stands for all of them.
  Stacks Represent(const Stacks& stacks, int64_t horizon);
  size_t bytes() const {
    return frames_.size() * kFrameBytes + represented_.size() * kRepresentedBytes;
  }

 private:
  static constexpr size_t kFrameBytes = 128;  // with its entry of the table
  static constexpr size_t kRepresentedBytes = 48;
  using Key = std::tuple<int32_t, int64_t, const Frame*>;
  struct Work {
    int32_t expression;  // -1: to return to the frame
    FramePointer frame;
  };

  // By an original, its copy or what represents it.
  template <class Key>
  using FrameMap = absl::flat_hash_map<Key, FramePointer>;
  // Replaces the frames of the stacks, from the bottom of each: make(frame, what replaced its
  // parent), unless find(frame) has a replacement.
  template <class Find, class Make>
  static Stacks Replace(const Stacks& stacks, const Find& find, const Make& make);
  // The index that represents that of the frame.
  int64_t RepresentIndex(const Frame& frame, int64_t horizon) const;
  FramePointer Push(int32_t expression, int64_t index, const FramePointer& parent);
  bool Close(Stacks& to);  // does all work_
  void Reach(int32_t state, const FramePointer& rest, Stacks& to);
  void Enter(int32_t expression, const FramePointer& frame, Stacks& to);
  void Return(const FramePointer& frame, Stacks& to);
  void Continue(int32_t expression, int64_t index, const FramePointer& parent);
  void AddWork(int32_t expression, const FramePointer& frame);

  std::shared_ptr<const Automaton> automaton_;
  FrameMap<Key> frames_;
  // By a frame that counts and a horizon: each is looked at once, however many places have it.
  FrameMap<std::pair<const Frame*, int64_t>> represented_;
  uint64_t next_id_ = 1;
  std::vector<Work> work_;
  int64_t n_work_ = 0;
  absl::flat_hash_set<std::pair<int32_t, const Frame*>> seen_;
};

}  // namespace ovq::constraint
