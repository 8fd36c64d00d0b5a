// Clocks. Deadlines and waits follow the steady clock; wall time is only shown to people.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ovq {

using SteadyClock = std::chrono::steady_clock;
using SteadyTime = SteadyClock::time_point;
inline constexpr SteadyTime kNever = SteadyTime::max();

// from + time: kNever if `time` is longer than a century, so that no sum overflows the clock's
// range; `from` if it is negative.
inline SteadyTime After(SteadyTime from, absl::Duration time) {
  if (time > absl::Hours(100 * 366 * 24)) return kNever;
  return from + absl::ToChronoNanoseconds(std::max(time, absl::ZeroDuration()));
}

// Both clocks, replaceable in tests.
struct Clock {
  std::function<SteadyTime()> steady = std::chrono::steady_clock::now;
  // Not absl::Now, which shows the old time for some seconds after the clock was set.
  std::function<absl::Time()> wall = [] {
    return absl::FromChrono(std::chrono::system_clock::now());
  };

  // The steady time at which the wall clock will show `time`, as far as is known now. kNever if
  // that is over a century away.
  SteadyTime ToSteady(absl::Time time) const { return After(steady(), time - wall()); }
};

inline absl::Duration TimeBetween(SteadyTime from, SteadyTime to) {
  return absl::FromChrono(to - from);
}

}  // namespace ovq
