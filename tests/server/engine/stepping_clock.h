// A clock by which whatever happens takes the same time, however busy the machine is.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "base/clock.h"

namespace ovq::engine::test {

// Goes on by `step_us` microseconds whenever somebody looks at it.
inline Clock SteppingClock(std::shared_ptr<std::atomic<int64_t>> step_us) {
  const auto now = std::make_shared<std::atomic<int64_t>>(1'000'000'000);
  return {.steady = [=] { return SteadyTime(std::chrono::microseconds(*now += *step_us)); }};
}
inline Clock SteppingClock(int64_t step_us) {
  return SteppingClock(std::make_shared<std::atomic<int64_t>>(step_us));
}

// Stands still until the test sets the milliseconds that have passed.
inline Clock StandingClock(std::shared_ptr<std::atomic<int64_t>> ms) {
  return {
      .steady = [=] { return SteadyTime(std::chrono::hours(1) + std::chrono::milliseconds(*ms)); },
      .wall =
          [=] { return absl::FromUnixSeconds(1'700'000'000) + absl::Milliseconds(int64_t{*ms}); }};
}

}  // namespace ovq::engine::test
