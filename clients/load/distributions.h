// Random numbers, arrival times and request lengths of a load test.
#pragma once

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ovq::load {

// SplitMix64 with its own distributions: the standard library fixes the output of its generators
// but not of its distributions, so these numbers are the same everywhere. Streams of one seed are
// independent of each other: a request's numbers do not depend on the order in which requests are
// made.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t stream = 0);

  uint64_t Next();
  double Unit();               // uniform in (0, 1)
  uint64_t Below(uint64_t n);  // uniform in [0, n), n > 0
  double Normal();             // mean 0, variance 1
  double Exponential();        // mean 1
  double Gamma(double shape);  // mean and variance: `shape`

 private:
  uint64_t state_;
};

enum class ArrivalKind : uint8_t { kConstant, kPoisson, kGamma };
inline constexpr std::array<const char*, 3> kArrivalKinds = {"constant", "poisson", "gamma"};

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;        // requests per second once the ramp is over
  double burstiness = 1;  // for kGamma: shape of the gaps; 1 is Poisson, less is burstier
  absl::Duration ramp = absl::ZeroDuration();  // time over which the rate grows linearly from 0
  uint64_t seed = 1;
};

// Due times of an open loop. Draws gaps of mean 1 and maps their running sum through the inverse of
// the expected number of arrivals, so every kind of arrivals can have a ramp.
class ArrivalSchedule {
 public:
  explicit ArrivalSchedule(const ArrivalOptions& options)
      : options_(options), random_(options.seed, /*stream=*/0xa221ba1) {}
  double Next();  // seconds since the start, ascending

 private:
  const ArrivalOptions options_;
  Random random_;
  double expected_ = 0;  // arrivals so far of a process of rate 1
};

// Returns the time at which a user (0 to users - 1) of a closed loop begins: users are spread
// evenly over the ramp, the first at its start.
absl::Duration UserStartTime(int64_t user, int64_t users, absl::Duration ramp);

// Lengths of prompts and answers, in tokens.
class LengthDistribution {
 public:
  static LengthDistribution Fixed(int64_t tokens);
  // Parses "128", "uniform:64-256" (both ends included) or "lognormal:MEAN:SIGMA[:A-B]": the
  // logarithm is normal with standard deviation SIGMA, the mean length is MEAN, and lengths are
  // clipped to A-B (default: 1 to ten times the mean). All lengths lie in [1, limit].
  // InvalidArgument says what was expected.
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view text, int64_t limit);

  int64_t Draw(Random& random) const;
  int64_t max() const { return high_; }

 private:
  enum class Kind : uint8_t { kFixed, kUniform, kLognormal };
  Kind kind_ = Kind::kFixed;
  int64_t low_ = 1, high_ = 1;  // bounds of drawn lengths
  double mu_ = 0, sigma_ = 0;   // of kLognormal
};

}  // namespace ovq::load
