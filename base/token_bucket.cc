#include "base/token_bucket.h"

#include <algorithm>
#include <cmath>

namespace ovq {

void TokenBucket::SetRate(double rate, double size, SteadyTime now) {
  left_ = std::min(left(now), size);
  rate_ = rate;
  size_ = size;
}

double TokenBucket::left(SteadyTime now) {
  // Threads may arrive here in another order than they read the clock.
  if (now > as_of_) {
    const double seconds = std::chrono::duration<double>(now - as_of_).count();
    left_ = std::min(size_, left_ + seconds * rate_);
    as_of_ = now;
  }
  return left_;
}

absl::Duration TokenBucket::Until(double amount, SteadyTime now) {
  const double missing = amount - left(now);
  if (missing <= 0) return absl::ZeroDuration();
  const double ms = std::min(std::ceil(missing / rate_ * 1000), 24 * 3600 * 1000.0);
  return absl::Milliseconds(static_cast<int64_t>(ms));
}

}  // namespace ovq
