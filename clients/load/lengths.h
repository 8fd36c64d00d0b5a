// Distributions of prompt and answer lengths, in tokens.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/load/random.h"

namespace ovq::load {

class LengthDistribution {
 public:
  static LengthDistribution Fixed(int64_t tokens);
  // "128", "uniform:64-256" (both ends drawn) or "lognormal:MEAN:SIGMA[:A-B]": a normal logarithm
  // with standard deviation SIGMA whose mean length is MEAN, clipped to A-B (default: 1 to ten
  // times the mean). All lengths lie in [1, limit]. InvalidArgument says what was expected.
  static absl::StatusOr<LengthDistribution> Parse(absl::string_view text, int64_t limit);

  int64_t Draw(Random& random) const;
  int64_t max() const { return high_; }

 private:
  enum class Kind : uint8_t { kFixed, kUniform, kLognormal };
  Kind kind_ = Kind::kFixed;
  int64_t low_ = 1, high_ = 1;  // of what is drawn
  double mu_ = 0, sigma_ = 0;   // kLognormal
};

}  // namespace ovq::load
