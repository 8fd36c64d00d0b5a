// TokenBucket: a rate limit with bursts.
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"

namespace ovq {

// Gains `rate` a second up to `size`; full at first. Not thread-safe.
class TokenBucket {
 public:
  TokenBucket() = default;  // always empty
  TokenBucket(double rate, double size, SteadyTime now)
      : rate_(rate), size_(size), left_(size), as_of_(now) {}

  void SetRate(double rate, double size,
               SteadyTime now);  // keeps the content, up to the new size
  double left(SteadyTime now);
  void Charge(double amount) { left_ -= amount; }  // the content may become negative
  // Time until left() is at least `amount`, in whole milliseconds rounded up, at most a day.
  absl::Duration Until(double amount, SteadyTime now);

 private:
  double rate_ = 0, size_ = 0;
  double left_ = 0;
  SteadyTime as_of_;
};

}  // namespace ovq
