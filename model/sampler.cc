#include "model/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/common/random.h"

namespace ovq {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// A total order for any bits a model may give: NaN as minus infinity, infinity as the largest.
float Sane(float logit) {
  if (std::isnan(logit)) return kMinusInfinity;
  return std::min(logit, std::numeric_limits<float>::max());
}

struct Scored {
  float logit;
  int32_t id;
};

bool Better(const Scored& a, const Scored& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// The n best logits, best first: one pass with a heap of n whose front is the worst kept.
std::vector<Scored> SelectBest(std::span<const float> logits, size_t n) {
  n = std::min(n, logits.size());
  std::vector<Scored> best(n);
  if (n == 0) return best;
  for (size_t i = 0; i < n; ++i) {
    best[i] = {std::isnan(logits[i]) ? kMinusInfinity : logits[i], static_cast<int32_t>(i)};
  }
  std::make_heap(best.begin(), best.end(), Better);
  for (size_t i = n; i < logits.size(); ++i) {
    // Ids ascend, so a later equal never replaces an earlier one. False for NaN.
    if (!(logits[i] > best.front().logit)) continue;
    std::pop_heap(best.begin(), best.end(), Better);
    best.back() = {logits[i], static_cast<int32_t>(i)};
    std::push_heap(best.begin(), best.end(), Better);
  }
  std::sort_heap(best.begin(), best.end(), Better);
  return best;
}

// The first of the largest; 0 if none is above minus infinity. Lanes let the compiler use vectors.
int32_t ArgMax(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kMinusInfinity);
  const size_t whole = logits.size() / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];  // false for NaN
    }
  }
  for (size_t i = whole; i < logits.size(); ++i) {
    if (logits[i] > lanes[0]) lanes[0] = logits[i];
  }
  const float best = *std::max_element(lanes, lanes + kLanes);
  const auto first = std::find(logits.begin(), logits.end(), best);
  return first == logits.end() ? 0 : static_cast<int32_t>(first - logits.begin());
}

float Logprob(float logit, float log_sum_exp) {
  const float value = logit - log_sum_exp;
  return std::isnan(value) ? kMinusInfinity : value;
}

absl::Status CheckRange(std::string_view field, float value, float min, float max, bool min_open) {
  const bool ok = (min_open ? value > min : value >= min) && value <= max;  // NaN fails
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(std::string(field), ": expected a number in ",
                                                 min_open ? "(" : "[", min, ", ", max, "], got ",
                                                 value));
}

}  // namespace

absl::Status SamplingParams::Validate(int64_t vocab_size) const {
  absl::Status status = CheckRange("temperature", temperature, 0, 100, false);
  if (top_k < 0) {
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("top_k: expected 0 (off) or a positive integer, got ", top_k)));
  }
  status.Update(CheckRange("top_p", top_p, 0, 1, true));
  status.Update(CheckRange("min_p", min_p, 0, 1, false));
  status.Update(CheckRange("typical_p", typical_p, 0, 1, true));
  status.Update(CheckRange("repetition_penalty", repetition_penalty, 0, 100, true));
  status.Update(CheckRange("presence_penalty", presence_penalty, -2, 2, false));
  status.Update(CheckRange("frequency_penalty", frequency_penalty, -2, 2, false));
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab_size) {
      status.Update(absl::InvalidArgumentError(
          absl::StrCat("logit_bias: token id ", id, " is outside the vocabulary of ", vocab_size)));
    }
    status.Update(CheckRange(absl::StrCat("logit_bias[", id, "]"), bias, -100, 100, false));
  }
  return status;
}

Sampler::Sampler(SamplingParams params, int64_t vocab_size) : params_(std::move(params)) {
  if (params_.repetition_penalty != 1.0f) is_seen_.resize(static_cast<size_t>(vocab_size));
}

void Sampler::MarkSeen(int32_t id) {
  if (is_seen_.empty() || is_seen_[id]) return;
  is_seen_[id] = true;
  seen_.push_back(id);
}

void Sampler::ObservePrompt(std::span<const int32_t> tokens) {
  for (int32_t id : tokens) MarkSeen(id);
}

std::span<const float> Sampler::Adjust(std::span<const float> logits,
                                       std::span<const int32_t> banned) {
  const bool counts = params_.presence_penalty != 0.0f || params_.frequency_penalty != 0.0f;
  if (seen_.empty() && !(counts && !generated_.empty()) && params_.logit_bias.empty() &&
      banned.empty()) {
    return logits;
  }
  adjusted_.assign(logits.begin(), logits.end());
  for (int32_t id : seen_) {
    float& logit = adjusted_[id];
    logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
  }
  if (counts) {
    for (const auto& [id, count] : generated_) {
      adjusted_[id] -=
          params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    }
  }
  for (const auto& [id, bias] : params_.logit_bias) adjusted_[id] += bias;
  for (int32_t id : banned) adjusted_[id] = kMinusInfinity;
  return adjusted_;
}

// Candidates after temperature and top_k. Those whose probability is below the resolution of the
// random number are left out: even 2^24 of them together weigh e^-60 2^24 < 2^-53 of the best.
void Sampler::Gather(std::span<const float> logits) {
  constexpr double kNegligible = -60;
  candidates_.clear();
  candidates_.reserve(logits.size());
  const bool cut = params_.top_k > 0 && static_cast<size_t>(params_.top_k) < logits.size();
  const float best = Sane(logits[ArgMax(logits)]);
  const double scale = 1.0 / static_cast<double>(params_.temperature);
  const auto add = [&](int32_t id, float logit) {
    const double exponent = (static_cast<double>(logit) - best) * scale;
    if (!(exponent > kNegligible)) return;
    candidates_.push_back({.id = id, .logit = logit, .weight = std::exp(exponent), .rank = 0});
  };
  if (cut) {
    for (const Scored& s : SelectBest(logits, static_cast<size_t>(params_.top_k))) {
      add(s.id, Sane(s.logit));
    }
  } else {
    for (size_t i = 0; i < logits.size(); ++i) add(static_cast<int32_t>(i), Sane(logits[i]));
  }
}

void Sampler::KeepMass(double mass) {
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank < b.rank : a.id < b.id;
  };
  // Linear time: weights are summed in bins of rank, and only the bin in which the sum reaches the
  // mass is sorted.
  constexpr int kBins = 1024;
  const auto [lowest, highest] =
      std::minmax_element(candidates_.begin(), candidates_.end(), before);
  const double low = lowest->rank;
  const double width = highest->rank - low;
  const double scale = width > 0 ? kBins / width : 0;
  const auto bin_of = [&](const Candidate& c) {
    return std::min(static_cast<int>((c.rank - low) * scale), kBins - 1);
  };
  std::array<double, kBins> sums{};
  double total = 0;
  for (const Candidate& c : candidates_) {
    sums[bin_of(c)] += c.weight;
    total += c.weight;
  }
  const double target = mass * total;
  int bin = 0;
  double sum = 0;
  for (; bin < kBins - 1 && sum + sums[bin] < target; ++bin) sum += sums[bin];
  border_.clear();
  std::ranges::copy_if(candidates_, std::back_inserter(border_),
                       [&](const Candidate& c) { return bin_of(c) == bin; });
  std::sort(border_.begin(), border_.end(), before);
  if (border_.empty()) return;  // rounding alone kept the sum below the target: all stay
  size_t kept = 0;
  do sum += border_[kept++].weight;
  while (sum < target && kept < border_.size());
  const Candidate last = border_[kept - 1];
  std::erase_if(candidates_, [&](const Candidate& c) { return before(last, c); });
}

void Sampler::KeepTypical() {
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  double entropy = 0;
  for (const Candidate& c : candidates_) {
    const double p = c.weight / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  for (Candidate& c : candidates_) c.rank = std::abs(std::log(c.weight / total) + entropy);
  KeepMass(params_.typical_p);
}

void Sampler::KeepAboveMinP() {
  double best = 0;
  for (const Candidate& c : candidates_) best = std::max(best, c.weight);
  const double floor = best * params_.min_p;
  std::erase_if(candidates_, [&](const Candidate& c) { return c.weight < floor; });
}

int32_t Sampler::Draw(int64_t position) const {
  const auto counter = static_cast<uint64_t>(position);
  const auto words =
      Philox4x32({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                 {static_cast<uint32_t>(params_.seed), static_cast<uint32_t>(params_.seed >> 32)});
  double total = 0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double target = UnitInterval(words[0], words[1]) * total;
  double sum = 0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (sum > target) return c.id;
  }
  return candidates_.back().id;
}

Sampled Sampler::Sample(std::span<const float> logits, float log_sum_exp, int64_t position,
                        int top_logprobs, std::span<const int32_t> banned) {
  const std::span<const float> adjusted = Adjust(logits, banned);
  candidates_.clear();
  if (params_.temperature > 0) Gather(adjusted);
  Sampled sampled;
  if (candidates_.empty()) {  // greedy, or not one finite logit
    sampled.token_id = ArgMax(adjusted);
    // Without a finite logit that is token 0, which may be banned.
    while (std::ranges::find(banned, sampled.token_id) != banned.end() &&
           sampled.token_id + 1 < static_cast<int32_t>(logits.size())) {
      ++sampled.token_id;
    }
  } else {
    if (params_.typical_p < 1) KeepTypical();
    if (params_.top_p < 1) {
      for (Candidate& c : candidates_) c.rank = -static_cast<double>(c.logit);
      KeepMass(params_.top_p);
    }
    if (params_.min_p > 0) KeepAboveMinP();
    sampled.token_id = Draw(position);
  }
  sampled.logprob = Logprob(logits[sampled.token_id], log_sum_exp);
  if (top_logprobs > 0) sampled.top = TopLogprobs(logits, log_sum_exp, top_logprobs);
  MarkSeen(sampled.token_id);
  ++generated_[sampled.token_id];
  return sampled;
}

std::vector<TokenLogprob> TopLogprobs(std::span<const float> logits, float log_sum_exp, int n) {
  std::vector<TokenLogprob> top;
  for (const Scored& s : SelectBest(logits, static_cast<size_t>(std::max(n, 0)))) {
    top.push_back({s.id, Logprob(s.logit, log_sum_exp)});
  }
  return top;
}

}  // namespace ovq
