// Time: what waits follows the steady clock; wall time is for people to read.
#pragma once

#include <chrono>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ovq {

using SteadyTime = std::chrono::steady_clock::time_point;
inline constexpr SteadyTime kNever = SteadyTime::max();

// Both clocks; tests have their own.
struct Clock {
  std::function<SteadyTime()> steady = std::chrono::steady_clock::now;
  // Not absl::Now, which for some seconds after the clock was set tells the time of before.
  std::function<absl::Time()> wall = [] {
    return absl::FromChrono(std::chrono::system_clock::now());
  };

  // When the steady clock will show a wall time, as far as is known now. kNever for one that is
  // more than a century away.
  SteadyTime ToSteady(absl::Time time) const;
};

// kNever if `time` is longer than a century, `from` if it is negative.
SteadyTime After(SteadyTime from, absl::Duration time);

inline absl::Duration TimeBetween(SteadyTime from, SteadyTime to) {
  return absl::FromChrono(to - from);
}

}  // namespace ovq
