#include "clients/load/lengths.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace ovq::load {
namespace {

std::optional<int64_t> ParseLength(absl::string_view text, int64_t limit) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > limit) return std::nullopt;
  return value;
}

// "A-B" with 1 <= A <= B <= limit.
std::optional<std::pair<int64_t, int64_t>> ParseRange(absl::string_view text, int64_t limit) {
  const std::vector<absl::string_view> ends = absl::StrSplit(text, '-');
  if (ends.size() != 2) return std::nullopt;
  const std::optional<int64_t> low = ParseLength(ends[0], limit);
  const std::optional<int64_t> high = ParseLength(ends[1], limit);
  if (!low || !high || *low > *high) return std::nullopt;
  return std::pair(*low, *high);
}

}  // namespace

LengthDistribution LengthDistribution::Fixed(int64_t tokens) {
  LengthDistribution result;
  result.low_ = result.high_ = tokens;
  return result;
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(absl::string_view text,
                                                             int64_t limit) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("expected N, uniform:A-B or lognormal:MEAN:SIGMA[:A-B] with lengths from 1 to ",
                   limit, " and SIGMA from 0 to 4, got '", text, "'"));
  LengthDistribution result;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "uniform:")) {
    const auto range = ParseRange(rest, limit);
    if (!range) return wrong;
    result.kind_ = Kind::kUniform;
    std::tie(result.low_, result.high_) = *range;
    return result;
  }
  if (absl::ConsumePrefix(&rest, "lognormal:")) {
    const std::vector<absl::string_view> parts = absl::StrSplit(rest, ':');
    double mean = 0;
    if (parts.size() < 2 || parts.size() > 3 || !absl::SimpleAtod(parts[0], &mean) ||
        !absl::SimpleAtod(parts[1], &result.sigma_)) {
      return wrong;
    }
    const bool known =
        mean >= 1 && mean <= static_cast<double>(limit) && result.sigma_ >= 0 && result.sigma_ <= 4;
    if (!known) return wrong;
    result.kind_ = Kind::kLognormal;
    // The mean of exp(Normal(mu, sigma^2)) is exp(mu + sigma^2 / 2).
    result.mu_ = std::log(mean) - result.sigma_ * result.sigma_ / 2;
    result.low_ = 1;
    result.high_ = std::min(limit, static_cast<int64_t>(std::ceil(10 * mean)));
    if (parts.size() == 3) {
      const auto range = ParseRange(parts[2], limit);
      if (!range) return wrong;
      std::tie(result.low_, result.high_) = *range;
    }
    return result;
  }
  const std::optional<int64_t> length = ParseLength(text, limit);
  if (!length) return wrong;
  return Fixed(*length);
}

int64_t LengthDistribution::Draw(Random& random) const {
  switch (kind_) {
    case Kind::kFixed:
      break;
    case Kind::kUniform:
      return low_ + static_cast<int64_t>(random.Below(static_cast<uint64_t>(high_ - low_ + 1)));
    case Kind::kLognormal: {
      const double length = std::exp(mu_ + sigma_ * random.Normal());
      return std::llround(
          std::clamp(length, static_cast<double>(low_), static_cast<double>(high_)));
    }
  }
  return low_;
}

}  // namespace ovq::load
