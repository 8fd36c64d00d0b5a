// A token bucket: how much of something may happen in a time.
#pragma once

#include "absl/time/time.h"
#include "base/clock.h"

namespace ovq {

// Gains `rate` a second up to `size`, and is full at first. Not thread-safe.
class TokenBucket {
 public:
  TokenBucket() = default;  // empty for ever
  TokenBucket(double rate, double size, SteadyTime now)
      : rate_(rate), size_(size), left_(size), as_of_(now) {}

  void SetRate(double rate, double size,
               SteadyTime now);  // keeps what is in it, up to the new size
  double left(SteadyTime now);
  void Charge(double amount) { left_ -= amount; }  // may make a debt
  // Until left() is at least `amount`, in whole milliseconds rounded up, a day at most.
  absl::Duration Until(double amount, SteadyTime now);

 private:
  double rate_ = 0, size_ = 0;
  double left_ = 0;
  SteadyTime as_of_;
};

}  // namespace ovq
