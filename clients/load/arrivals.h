// When the requests of an open loop are due, and how many users a closed loop has.
#pragma once

#include <array>
#include <cstdint>

#include "clients/load/random.h"

namespace ovq::load {

enum class ArrivalKind : uint8_t { kConstant, kPoisson, kGamma };
inline constexpr std::array<const char*, 3> kArrivalKinds = {"constant", "poisson", "gamma"};

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;        // requests a second once the ramp is over
  double burstiness = 1;  // kGamma: the shape of the gaps; 1 is Poisson, less is burstier
  double ramp_s = 0;      // the rate grows linearly from 0 for so long
  uint64_t seed = 1;
};

// Due times of an open loop. Gaps of mean 1 are drawn, and their running sum is taken through the
// inverse of the expected number of arrivals, so every kind of arrivals can have a ramp.
class ArrivalSchedule {
 public:
  explicit ArrivalSchedule(const ArrivalOptions& options);
  double Next();  // seconds since the start, ascending

 private:
  double Gap();
  const ArrivalOptions options_;
  Random random_;
  double expected_ = 0;  // arrivals so far, in a process of rate 1
};

// Users of a closed loop: one at the start, the rest evenly over the ramp.
class ClosedLoop {
 public:
  ClosedLoop(int64_t users, double ramp_s) : users_(users), ramp_s_(ramp_s) {}
  int64_t UsersAt(double seconds) const;
  double StartOf(int64_t user) const;  // seconds; users count from 0

 private:
  const int64_t users_;
  const double ramp_s_;
};

}  // namespace ovq::load
