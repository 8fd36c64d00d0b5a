// Dfa: a regular language over bytes, as a deterministic automaton.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace ovq::constraint {

// Immutable once built. State 0 is the start. A byte that no range of a state has leads nowhere.
class Dfa {
 public:
  struct Range {
    uint8_t first, last;  // inclusive
    int32_t to;
    bool operator==(const Range&) const = default;
  };
  struct State {
    bool accepts = false;
    std::vector<Range> ranges;  // ascending, disjoint
    bool operator==(const State&) const = default;
  };

  explicit Dfa(std::vector<State> states) : states_(std::move(states)) {}
  const std::vector<State>& states() const { return states_; }

 private:
  std::vector<State> states_;
};

}  // namespace ovq::constraint
