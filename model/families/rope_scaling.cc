// With f_j = theta^(-j / n), the frequency of pair j < n, N original_max_position_embeddings and s
// the factor, a pair turns by r_j = N f_j / (2 pi) turns in N tokens. Frequencies are multiplied by
//   linear:   1 / s
//   llama3:   g + (1 - g) / s,  g = clip((r_j - low) / (high - low), 0, 1)
//   yarn:     (1 - g) + g / s,  g = clip((j - first) / (last - first), 0, 1), with c(r) the (real)
//             index of the pair that turns r times in N tokens, first = max(floor c(beta_fast), 0),
//             last = min(ceil c(beta_slow), 2 n - 1)
//   longrope: 1 / long_factor[j], or 1 / short_factor[j] where sessions have at most N tokens
//   divided:  1 / divisors[j]; GGUF files have these in place of the fields of llama3
// The amplitude of yarn is 0.1 ln s + 1, that of longrope sqrt(1 + ln s / ln N).
#include "model/families/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ovq::model {
namespace {

constexpr double kMaxFactor = 1e6;

// A number that the file must have.
double Number(kernels::AttrReader& object, std::string_view field, double min) {
  double value = min - 1;  // missing
  object.Float(field, value, min, kMaxFactor);
  return value;
}

double OriginalLength(kernels::AttrReader& object, const RopeLengths& lengths) {
  constexpr std::string_view kField = "original_max_position_embeddings";
  int64_t length = lengths.original > 0 ? lengths.original : lengths.most;
  if (lengths.original == 0) object.Int(kField, length, 2, kMaxRopeLength);
  return static_cast<double>(std::max<int64_t>(length, 2));
}

void ScaleLlama3(kernels::AttrReader& object, const RopeLengths& lengths, kernels::RopeSpec& rope) {
  const double factor = Number(object, "factor", 1), low = Number(object, "low_freq_factor", 0),
               high = Number(object, "high_freq_factor", 0),
               original = OriginalLength(object, lengths);
  if (object.ok() && high <= low) {
    object.Fail("high_freq_factor", "expected a number above low_freq_factor");
  }
  const auto n = static_cast<double>(rope.factors.size());
  for (size_t j = 0; j < rope.factors.size(); ++j) {
    const double turns =
        original * std::pow(rope.theta, -static_cast<double>(j) / n) / (2 * std::numbers::pi);
    const double g = std::clamp((turns - low) / (high - low), 0.0, 1.0);
    rope.factors[j] = g + (1 - g) / factor;
  }
}

// The amplitude of yarn for a factor, and for the two fields that some files have instead.
double YarnAmplitude(kernels::AttrReader& object, double factor) {
  const auto amplitude = [factor](double scale) { return 0.1 * scale * std::log(factor) + 1; };
  const double scale = object.FloatOr("mscale", 0, 0, kMaxFactor),
               of_all = object.FloatOr("mscale_all_dim", 0, 0, kMaxFactor);
  const double usual =
      scale != 0 && of_all != 0 ? amplitude(scale) / amplitude(of_all) : amplitude(1);
  return object.FloatOr("attention_factor", usual, 0, kMaxFactor);
}

void ScaleYarn(kernels::AttrReader& object, const RopeLengths& lengths, kernels::RopeSpec& rope) {
  const double factor = Number(object, "factor", 1), original = OriginalLength(object, lengths),
               fast = object.FloatOr("beta_fast", 32, 1e-3, kMaxFactor),
               slow = object.FloatOr("beta_slow", 1, 1e-3, kMaxFactor);
  const bool rounds = object.BoolOr("truncate", true);
  rope.amplitude = YarnAmplitude(object, factor);
  const auto n = static_cast<double>(rope.factors.size());
  const auto pair_that_turns = [&](double turns) {
    return n * std::log(original / (2 * std::numbers::pi * turns)) / std::log(rope.theta);
  };
  double first = pair_that_turns(fast), last = pair_that_turns(slow);
  if (rounds) first = std::floor(first), last = std::ceil(last);
  first = std::max(first, 0.0), last = std::min(last, 2 * n - 1);
  if (first == last) last += 0.001;
  for (size_t j = 0; j < rope.factors.size(); ++j) {
    const double g = std::clamp((static_cast<double>(j) - first) / (last - first), 0.0, 1.0);
    rope.factors[j] = 1 - g + g / factor;
  }
}

void Divide(kernels::AttrReader& object, const RopeLengths&, kernels::RopeSpec& rope) {
  const std::vector<double> ones(rope.factors.size(), 1);
  const std::vector<double> divisors = object.FloatsOr("divisors", ones, 1e-3, kMaxFactor);
  for (size_t j = 0; j < divisors.size(); ++j) rope.factors[j] = 1 / divisors[j];
}

void ScaleLongRope(kernels::AttrReader& object, const RopeLengths& lengths,
                   kernels::RopeSpec& rope) {
  const double original = OriginalLength(object, lengths), most = static_cast<double>(lengths.most);
  const double factor = object.FloatOr("factor", most / original, 0, kMaxFactor);
  const double usual = factor > 1 ? std::sqrt(1 + std::log(factor) / std::log(original)) : 1;
  rope.amplitude = object.FloatOr("attention_factor", usual, 0, kMaxFactor);
  for (const char* of_others : {"short_mscale", "long_mscale"}) {
    if (object.Has(of_others))
      object.Fail(of_others, "expected none: it belongs to other families");
  }
  for (const char* list : {"short_factor", "long_factor"}) {
    if (!object.Has(list)) object.Fail(list, "expected a list of numbers, but it is missing");
  }
  const std::vector<double> ones(rope.factors.size(), 1);
  const auto inverse = [&](const char* list) {
    std::vector<double> factors = object.FloatsOr(list, ones, 0.5, kMaxFactor);
    for (double& factor : factors) factor = 1 / factor;
    return factors;
  };
  rope.factors = inverse("long_factor");
  rope.short_factors = inverse("short_factor");
  rope.short_tokens = static_cast<int64_t>(original);
}

}  // namespace

void ReadRopeScaling(kernels::AttrReader& object, std::span<const RopeType> types,
                     const RopeLengths& lengths, int n_pairs, kernels::RopeSpec& rope) {
  std::vector<std::string_view> names;
  for (const RopeType& type : types) names.push_back(type.name);
  const char* field = object.Has("rope_type") ? "rope_type" : "type";
  const RopeScaling scaling = types[object.ChoiceOr(field, names)].scaling;
  if (scaling == RopeScaling::kNone) return;
  rope.factors.assign(static_cast<size_t>(std::max(n_pairs, 0)), 1);
  if (scaling == RopeScaling::kLinear) {
    std::ranges::fill(rope.factors, 1 / Number(object, "factor", 1));
  } else {
    const auto scale = scaling == RopeScaling::kLlama3    ? ScaleLlama3
                       : scaling == RopeScaling::kYarn    ? ScaleYarn
                       : scaling == RopeScaling::kDivided ? Divide
                                                          : ScaleLongRope;
    scale(object, lengths, rope);
  }
  if (object.ok() && !std::ranges::all_of(rope.factors, [](double x) { return x > 0; })) {
    object.Fail(field, absl::StrCat("gives no frequencies with rope_theta = ", rope.theta));
  }
}

}  // namespace ovq::model
