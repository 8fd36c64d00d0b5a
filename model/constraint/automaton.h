// Automaton: a compiled grammar. Bytes lead through the states of terminals; what follows a
// terminal is on a stack of frames (stacks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ovq::constraint {

// Immutable once compiled; any thread. There is no dead end in it: from each state of a terminal an
// accepting one is reached, each expression has a text, and `height` bounds the stack that a text
// needs.
class Automaton {
 public:
  struct Range {
    uint8_t first, last;  // inclusive
    int32_t to;           // a state
  };
  struct State {
    int32_t first_range = 0;
    int32_t n_ranges = 0;
    bool accepts = false;
  };
  enum class Kind : uint8_t { kTerminal, kSequence, kChoice, kRepeat };
  struct Expression {
    Kind kind = Kind::kSequence;
    int32_t first = 0;    // kTerminal: the start state; else the first of its parts
    int32_t n_parts = 0;  // kRepeat: 1, whose texts are not empty
    int64_t least = 0;    // kRepeat
    int64_t most = -1;    // kRepeat: -1 without bound
    // The frames that some text of it needs above those below it.
    int32_t height = 0;
  };
  struct Part {
    int32_t expression;
    // kSequence: the frames that the texts of this part and of those behind it need.
    int32_t height;
  };

  std::span<const Range> ranges(int32_t state) const {
    return std::span(ranges_).subspan(states_[state].first_range, states_[state].n_ranges);
  }
  bool accepts(int32_t state) const { return states_[state].accepts; }
  const Expression& expression(int32_t i) const { return expressions_[i]; }
  const Part& part(const Expression& of, int64_t i) const { return parts_[of.first + i]; }
  int32_t root() const { return root_; }
  int64_t n_states() const { return static_cast<int64_t>(states_.size()); }
  size_t bytes() const;  // of memory

 private:
  friend class AutomatonBuilder;

  std::vector<State> states_;
  std::vector<Range> ranges_;
  std::vector<Expression> expressions_;
  std::vector<Part> parts_;
  int32_t root_ = 0;
};

}  // namespace ovq::constraint
