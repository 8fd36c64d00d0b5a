// TokenBucket: a rate limit with bursts.
#pragma once

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"
#include "base/clock.h"

namespace ovq {

// Gains `rate` a second up to `size`; full at first. Not thread-safe.
class TokenBucket {
 public:
  TokenBucket() = default;  // always empty
  TokenBucket(double rate, double size, SteadyTime now)
      : rate_(rate), size_(size), left_(size), as_of_(now) {}

  // Keeps the content, up to the new size.
  void SetRate(double rate, double size, SteadyTime now) {
    left_ = std::min(left(now), size);
    rate_ = rate;
    size_ = size;
  }
  double left(SteadyTime now) {
    // Threads may arrive here in another order than they read the clock.
    if (now > as_of_) {
      const double seconds = std::chrono::duration<double>(now - as_of_).count();
      left_ = std::min(size_, left_ + seconds * rate_);
      as_of_ = now;
    }
    return left_;
  }
  void Charge(double amount) { left_ -= amount; }  // the content may become negative
  // Time until left() is at least `amount`, in whole milliseconds rounded up, at most a day.
  absl::Duration Until(double amount, SteadyTime now) {
    const double missing = amount - left(now);
    if (missing <= 0) return absl::ZeroDuration();
    const double ms = std::min(std::ceil(missing / rate_ * 1000), 24 * 3600 * 1000.0);
    return absl::Milliseconds(static_cast<int64_t>(ms));
  }

 private:
  double rate_ = 0, size_ = 0;
  double left_ = 0;
  SteadyTime as_of_;
};

}  // namespace ovq
