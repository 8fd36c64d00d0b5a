#include "base/clock.h"

#include <algorithm>

namespace ovq {

SteadyTime Clock::ToSteady(absl::Time time) const { return After(steady(), time - wall()); }

SteadyTime After(SteadyTime from, absl::Duration time) {
  if (time > absl::Hours(100 * 366 * 24))
    return kNever;  // so that no sum overflows the clock's range
  return from + absl::ToChronoNanoseconds(std::max(time, absl::ZeroDuration()));
}

}  // namespace ovq
