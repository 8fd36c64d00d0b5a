#include "clients/load/distributions.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flag_values.h"

namespace ovq::load {
namespace {

uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15u;

// Parses "A-B" with 1 <= A <= B <= limit.
std::optional<std::pair<int64_t, int64_t>> ParseRange(const std::string& text, int64_t limit) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const auto low = ParseNumber<int64_t>(ends.first, 1, limit);
  const auto high = ParseNumber<int64_t>(ends.second, 1, limit);
  if (!low || !high || *low > *high) return std::nullopt;
  return std::pair(*low, *high);
}

}  // namespace

Random::Random(uint64_t seed, uint64_t stream)
    : state_(Mix(Mix(seed + kGoldenGamma) ^ (stream * kGoldenGamma))) {}

uint64_t Random::Next() { return Mix(state_ += kGoldenGamma); }

double Random::Unit() { return (static_cast<double>(Next() >> 12) + 0.5) * 0x1p-52; }

uint64_t Random::Below(uint64_t n) {
  // Takes the high half of a 128-bit product; the bias is below n / 2^64.
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{Next()} * n) >> 64);
}

double Random::Normal() {
  const double radius = std::sqrt(-2 * std::log(Unit()));
  return radius * std::cos(2 * std::numbers::pi * Unit());
}

double Random::Exponential() { return -std::log(Unit()); }

// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); shapes below 1
// follow their note: Gamma(a) = Gamma(a + 1) U^(1/a).
double Random::Gamma(double shape) {
  if (shape < 1) {
    const double boost = std::pow(Unit(), 1 / shape);
    return Gamma(shape + 1) * boost;
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {  // rejects fewer than one draw in twenty
    const double x = Normal();
    const double cube = (1 + c * x) * (1 + c * x) * (1 + c * x);
    if (cube <= 0) continue;
    if (std::log(Unit()) < 0.5 * x * x + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

double ArrivalSchedule::Next() {
  const double b = options_.burstiness;
  expected_ += options_.kind == ArrivalKind::kConstant  ? 1
               : options_.kind == ArrivalKind::kPoisson ? random_.Exponential()
                                                        : random_.Gamma(b) / b;
  const double rate = options_.rate, ramp = absl::ToDoubleSeconds(options_.ramp);
  // Expected arrivals until t: rate t^2 / (2 ramp) during the ramp, then rate (t - ramp / 2).
  if (expected_ < rate * ramp / 2) return std::sqrt(2 * ramp * expected_ / rate);
  return expected_ / rate + ramp / 2;
}

absl::Duration UserStartTime(int64_t user, int64_t users, absl::Duration ramp) {
  if (user <= 0 || users <= 1) return absl::ZeroDuration();
  return ramp * user / (users - 1);
}

LengthDistribution LengthDistribution::Fixed(int64_t tokens) {
  LengthDistribution result;
  result.low_ = result.high_ = tokens;
  return result;
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(absl::string_view text,
                                                             int64_t limit) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  LengthDistribution result;
  std::optional<std::pair<int64_t, int64_t>> range;
  if (parts.size() == 1) {
    range = ParseRange(absl::StrCat(text, "-", text), limit);
  } else if (parts[0] == "uniform" && parts.size() == 2) {
    result.kind_ = Kind::kUniform;
    range = ParseRange(parts[1], limit);
  } else if (parts[0] == "lognormal" && (parts.size() == 3 || parts.size() == 4)) {
    result.kind_ = Kind::kLognormal;
    const auto mean = ParseNumber<double>(parts[1], 1, static_cast<double>(limit));
    const auto sigma = ParseNumber<double>(parts[2], 0, 4);
    if (mean && sigma) {
      result.sigma_ = *sigma;
      // The mean of exp(Normal(mu, sigma^2)) is exp(mu + sigma^2 / 2).
      result.mu_ = std::log(*mean) - *sigma * *sigma / 2;
      range = parts.size() == 4
                  ? ParseRange(parts[3], limit)
                  : std::pair<int64_t, int64_t>(1, std::min<double>(limit, std::ceil(10 * *mean)));
    }
  }
  if (!range) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected N, uniform:A-B or lognormal:MEAN:SIGMA[:A-B] with lengths from 1 to ", limit,
        " and SIGMA from 0 to 4, got '", text, "'"));
  }
  std::tie(result.low_, result.high_) = *range;
  return result;
}

int64_t LengthDistribution::Draw(Random& random) const {
  if (kind_ == Kind::kFixed) return low_;
  if (kind_ == Kind::kUniform) {
    return low_ + static_cast<int64_t>(random.Below(static_cast<uint64_t>(high_ - low_ + 1)));
  }
  const double length = std::exp(mu_ + sigma_ * random.Normal());
  return std::llround(std::clamp(length, static_cast<double>(low_), static_cast<double>(high_)));
}

}  // namespace ovq::load
