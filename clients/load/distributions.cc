#include "clients/load/distributions.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flag_values.h"

namespace ovq::load {
namespace {

// Parses "A-B" with 1 <= A <= B <= limit.
std::optional<std::pair<int64_t, int64_t>> ParseRange(const std::string& text, int64_t limit) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  const auto low = ParseNumber<int64_t>(ends.first, 1, limit);
  const auto high = ParseNumber<int64_t>(ends.second, 1, limit);
  if (!low || !high || *low > *high) return std::nullopt;
  return std::pair(*low, *high);
}

}  // namespace

Random RandomStream(uint64_t seed, uint64_t stream) {
  std::seed_seq words{seed, seed >> 32, stream, stream >> 32};  // takes 32 bits of each
  return Random(words);
}

double ArrivalSchedule::Next() {
  expected_ += options_.kind == ArrivalKind::kConstant ? 1 : gap_(random_);
  const double rate = options_.rate, ramp = absl::ToDoubleSeconds(options_.ramp);
  // Expected arrivals until t: rate t^2 / (2 ramp) during the ramp, then rate (t - ramp / 2).
  if (expected_ < rate * ramp / 2) return std::sqrt(2 * ramp * expected_ / rate);
  return expected_ / rate + ramp / 2;
}

absl::Duration UserStartTime(int64_t user, int64_t users, absl::Duration ramp) {
  if (user <= 0 || users <= 1) return absl::ZeroDuration();
  return ramp * user / (users - 1);
}

absl::StatusOr<LengthDistribution> LengthDistribution::Parse(absl::string_view text,
                                                             int64_t limit) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  std::optional<Normal> log;
  std::optional<std::pair<int64_t, int64_t>> range;
  if (parts.size() == 1) {
    range = ParseRange(absl::StrCat(text, "-", text), limit);
  } else if (parts[0] == "uniform" && parts.size() == 2) {
    range = ParseRange(parts[1], limit);
  } else if (parts[0] == "lognormal" && (parts.size() == 3 || parts.size() == 4)) {
    const auto mean = ParseNumber<double>(parts[1], 1, static_cast<double>(limit));
    const auto sigma = ParseNumber<double>(parts[2], 0, 4);
    if (mean && sigma) {
      // The mean of exp(Normal(mu, sigma^2)) is exp(mu + sigma^2 / 2).
      log = Normal{std::log(*mean) - *sigma * *sigma / 2, *sigma};
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
  return LengthDistribution(range->first, range->second, log);
}

int64_t LengthDistribution::Draw(Random& random) const {
  if (!log_) return std::uniform_int_distribution(low_, high_)(random);
  const double length = std::exp(log_->mean + log_->sigma * std::normal_distribution()(random));
  return std::llround(std::clamp(length, static_cast<double>(low_), static_cast<double>(high_)));
}

}  // namespace ovq::load
