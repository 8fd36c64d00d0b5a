// Random numbers, arrival times and request lengths of a load test.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ovq::load {

using Random = std::mt19937_64;
// Streams of one seed are independent of each other: a request's numbers do not depend on the order
// in which requests are made.
Random RandomStream(uint64_t seed, uint64_t stream);

enum class ArrivalKind : uint8_t { kConstant, kPoisson, kGamma };
inline constexpr std::array<const char*, 3> kArrivalKinds = {"constant", "poisson", "gamma"};

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;        // requests per second once the ramp is over
  double burstiness = 1;  // shape of the gaps: 1 for kPoisson; for kGamma less is burstier
  absl::Duration ramp = absl::ZeroDuration();  // time over which the rate grows linearly from 0
  uint64_t seed = 1;
};

// Due times of an open loop. Draws gaps of mean 1 and maps their running sum through the inverse of
// the expected number of arrivals, so every kind of arrivals can have a ramp.
class ArrivalSchedule {
 public:
  explicit ArrivalSchedule(const ArrivalOptions& options)
      : options_(options),
        random_(RandomStream(options.seed, /*stream=*/0xa221ba1)),
        gap_(options.burstiness, 1 / options.burstiness) {}
  double Next();  // seconds since the start, ascending

 private:
  const ArrivalOptions options_;
  Random random_;
  std::gamma_distribution<> gap_;
  double expected_ = 0;  // arrivals so far of a process of rate 1
};

// Returns the time at which a user (0 to users - 1) of a closed loop begins: users are spread
// evenly over the ramp, the first at its start.
absl::Duration UserStartTime(int64_t user, int64_t users, absl::Duration ramp);

// Lengths of prompts and answers, in tokens.
class LengthDistribution {
 public:
  static LengthDistribution Fixed(int64_t tokens) { return {tokens, tokens}; }
  // Parses "128", "uniform:64-256" (both ends included) or "lognormal:MEAN:SIGMA[:A-B]": the
  // logarithm is normal with standard deviation SIGMA, the mean length is MEAN, and lengths are
  // clipped to A-B (default: 1 to ten times the mean). All lengths lie in [1, limit].
  // InvalidArgument says what was expected.
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view text, int64_t limit);

  int64_t Draw(Random& random) const;
  int64_t max() const { return high_; }

 private:
  struct Normal {
    double mean, sigma;
  };
  LengthDistribution(int64_t low, int64_t high, std::optional<Normal> log = {})
      : low_(low), high_(high), log_(log) {}

  int64_t low_, high_;         // bounds of drawn lengths
  std::optional<Normal> log_;  // the logarithm's distribution; without it lengths are uniform
};

}  // namespace ovq::load
