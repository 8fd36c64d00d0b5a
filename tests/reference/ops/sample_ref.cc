// Draws by the definition of each filter, with full sorts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/common/random.h"
#include "kernels/ops/ops.h"
#include "kernels/ops/sample_device.h"
#include "tests/reference/reference_of.h"

namespace ovq::kernels::ref {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

float NoNan(float logit) { return std::isnan(logit) ? kMinusInfinity : logit; }

struct Token {
  int32_t id;
  float logit;
  double weight;  // the probability up to a factor
};

bool IsAllowed(std::span<const uint32_t> allowed, int64_t id) {
  if (allowed.empty()) return true;
  const auto* bytes = reinterpret_cast<const uint8_t*>(allowed.data());
  return (bytes[id / 8] & (1 << (id % 8))) != 0;
}

std::vector<float> Adjusted(const float* row, int64_t vocab, const RowDraw& draw) {
  const DrawParams& params = draw.params;
  std::vector<float> logits(row, row + vocab);
  for (int32_t id : draw.seen) {
    const float r = params.repetition_penalty;
    logits[id] = logits[id] > 0 ? logits[id] / r : logits[id] * r;
  }
  for (const auto& [id, count] : draw.generated) {
    logits[id] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(count);
  }
  for (const auto& [id, bias] : draw.bias) logits[id] += bias;
  for (int32_t id : draw.banned) logits[id] = kMinusInfinity;
  for (int32_t id = 0; id < vocab; ++id) {
    if (!IsAllowed(draw.allowed, id)) logits[id] = kMinusInfinity;
  }
  std::ranges::transform(logits, logits.begin(), NoNan);
  return logits;
}

// Sorts the tokens by `rank`, ties by id.
template <class Rank>
void Sort(std::vector<Token>& tokens, Rank rank) {
  std::ranges::sort(tokens, {}, &Token::id);
  std::ranges::stable_sort(tokens, {}, rank);
}

double Total(const std::vector<Token>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), 0.0,
                         [](double sum, const Token& token) { return sum + token.weight; });
}

// Keeps the fewest first tokens, already sorted, whose weights reach `mass` of the sum.
void KeepMass(std::vector<Token>& tokens, double mass) {
  const double target = mass * Total(tokens);
  double sum = 0;
  size_t kept = 0;
  while (kept < tokens.size() && sum < target) sum += tokens[kept++].weight;
  tokens.resize(kept);
}

void Filter(std::vector<Token>& tokens, const DrawParams& params) {
  const auto by_logit = [](const Token& token) { return -token.logit; };
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < tokens.size()) {
    Sort(tokens, by_logit);
    tokens.resize(static_cast<size_t>(params.top_k));
  }
  if (params.typical_p < 1) {
    const double total = Total(tokens);
    double entropy = 0;
    for (const Token& token : tokens) {
      entropy -= token.weight / total * std::log(token.weight / total);
    }
    Sort(tokens,
         [=](const Token& token) { return std::abs(-std::log(token.weight / total) - entropy); });
    KeepMass(tokens, params.typical_p);
  }
  if (params.top_p < 1) {
    Sort(tokens, by_logit);
    KeepMass(tokens, params.top_p);
  }
  const double best = std::ranges::max_element(tokens, {}, &Token::weight)->weight;
  std::erase_if(tokens, [&](const Token& token) { return token.weight < best * params.min_p; });
  std::ranges::sort(tokens, {}, &Token::id);
}

int32_t Draw(const float* row, int64_t vocab, const RowDraw& draw) {
  const std::vector<float> logits = Adjusted(row, vocab, draw);
  const float best = *std::ranges::max_element(logits);
  if (draw.params.temperature == 0 || best == kMinusInfinity) {
    for (int32_t id = 0; id < vocab; ++id) {
      const bool banned =
          std::ranges::find(draw.banned, id) != draw.banned.end() || !IsAllowed(draw.allowed, id);
      if (logits[id] == best && !banned) return id;
    }
    return static_cast<int32_t>(vocab - 1);
  }
  std::vector<Token> tokens;
  for (int32_t id = 0; id < vocab; ++id) {
    constexpr float kLargest = std::numeric_limits<float>::max();
    const double difference =
        static_cast<double>(std::min(logits[id], kLargest)) - std::min(best, kLargest);
    const double weight = std::exp(difference / draw.params.temperature);
    if (weight > 0) tokens.push_back({id, logits[id], weight});
  }
  Filter(tokens, draw.params);
  const double target = UnitInterval(draw) * Total(tokens);
  double sum = 0;
  for (const Token& token : tokens) {
    sum += token.weight;
    if (sum > target) return token.id;
  }
  return tokens.back().id;
}

void FindBest(const float* row, int64_t vocab, RowBest& wanted) {
  std::vector<TokenLogit> all;
  for (int32_t id = 0; id < vocab; ++id) {
    if (IsAllowed(wanted.allowed, id)) all.push_back({id, NoNan(row[id])});
  }
  std::sort(all.begin(), all.end(), BetterLogit);
  all.resize(std::min(all.size(), static_cast<size_t>(wanted.n)));
  wanted.best = all;
}

float AllowedLogSumExp(const float* row, int64_t vocab, std::span<const uint32_t> allowed) {
  float best = kMinusInfinity;
  for (int64_t id = 0; id < vocab; ++id) {
    if (!std::isfinite(row[id])) return std::numeric_limits<float>::quiet_NaN();
    if (IsAllowed(allowed, id)) best = std::max(best, row[id]);
  }
  if (best == kMinusInfinity) return best;
  double sum = 0;
  for (int64_t id = 0; id < vocab; ++id) {
    if (IsAllowed(allowed, id)) sum += std::exp(static_cast<double>(row[id]) - best);
  }
  return static_cast<float>(best + std::log(sum));
}

}  // namespace

void ReadLogits(DeviceContext& context, TensorView logits, LogitsReading& reading) {
  const int64_t vocab = logits.shape[1];
  const auto* rows = logits.as<float>();
  if (logits.shape[0] > 0) LogSumExp(context, logits, reading.log_sum_exp.data());
  for (RowDraw& draw : reading.draws) {
    const float* row = rows + draw.row * vocab;
    const int32_t id = Draw(row, vocab, draw);
    draw.drawn = {id, row[id]};
    draw.log_sum_exp = AllowedLogSumExp(row, vocab, draw.allowed);
  }
  for (RowToken& token : reading.tokens) token.logit = rows[token.row * vocab + token.id];
  for (RowBest& best : reading.bests) FindBest(rows + best.row * vocab, vocab, best);
}

const ReferenceOf<cpu::ReadLogits> kReadLogits = ReadLogits;

}  // namespace ovq::kernels::ref
