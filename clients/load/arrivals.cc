#include "clients/load/arrivals.h"

#include <cmath>

namespace ovq::load {

ArrivalSchedule::ArrivalSchedule(const ArrivalOptions& options)
    : options_(options), random_(options.seed, /*stream=*/0xa221ba1) {}

double ArrivalSchedule::Gap() {
  switch (options_.kind) {
    case ArrivalKind::kConstant:
      return 1;
    case ArrivalKind::kPoisson:
      return random_.Exponential();
    case ArrivalKind::kGamma:
      break;
  }
  return random_.Gamma(options_.burstiness) / options_.burstiness;
}

double ArrivalSchedule::Next() {
  expected_ += Gap();
  const double rate = options_.rate, ramp = options_.ramp_s;
  // Expected arrivals until t: rate t^2 / (2 ramp) during the ramp, then rate (t - ramp / 2).
  if (expected_ < rate * ramp / 2) return std::sqrt(2 * ramp * expected_ / rate);
  return expected_ / rate + ramp / 2;
}

int64_t ClosedLoop::UsersAt(double seconds) const {
  int64_t low = 0, high = users_;  // users that have started: a binary search on StartOf
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (StartOf(middle) <= seconds) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

double ClosedLoop::StartOf(int64_t user) const {
  if (user <= 0 || users_ <= 1) return 0;
  return ramp_s_ * static_cast<double>(user) / static_cast<double>(users_ - 1);
}

}  // namespace ovq::load
