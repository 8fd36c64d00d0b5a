#include "model/logits_reader.h"

#include <cmath>

namespace ovq::model {

size_t LogitsReader::WantBest(int64_t row, int n, kernels::TokenMaskBits allowed) {
  if (n <= 0) return kNone;
  reading_.bests.push_back({.row = row, .n = n, .allowed = allowed, .best = {}});
  return reading_.bests.size() - 1;
}

size_t LogitsReader::WantDraws(const DrawRequest& request, int64_t row, int64_t position,
                               std::span<const int32_t> drafted) {
  const size_t first = reading_.draws.size();
  const Sampler& sampler = *request.sampler;
  for (size_t i = 0; i <= drafted.size(); ++i) {
    const auto after = static_cast<int64_t>(i);
    const auto banned = after < request.n_early ? request.banned_early : request.banned;
    DraftedCounts* const counts = i == 0 ? nullptr : &drafted_counts_.emplace_back();
    kernels::RowDraw& draw = reading_.draws.emplace_back(
        sampler.Describe(row + after, position + after, banned, drafted.first(i), counts));
    if (!request.allowed.empty()) draw.allowed = request.allowed[i];
    draw_bests_.push_back(WantBest(row + after, request.top_logprobs, draw.allowed));
  }
  return first;
}

size_t LogitsReader::WantScore(int64_t row, std::optional<int32_t> token, int top_logprobs) {
  size_t place = kNone;
  if (token) {
    place = reading_.tokens.size();
    reading_.tokens.push_back({.row = row, .id = *token});
  }
  scores_.push_back({row, place, WantBest(row, top_logprobs)});
  return scores_.size() - 1;
}

void LogitsReader::Read(kernels::DeviceContext& context, kernels::TensorView logits) {
  kernels::ReadLogits(context, logits, reading_);
}

std::vector<TokenLogprob> LogitsReader::TopLogprobs(size_t best, float log_sum_exp) const {
  std::vector<TokenLogprob> top;
  if (best == kNone) return top;
  top.reserve(reading_.bests[best].best.size());
  for (const auto& [id, logit] : reading_.bests[best].best) {
    top.push_back({id, logit - log_sum_exp});
  }
  return top;
}

Sampled LogitsReader::Draw(size_t index) const {
  const kernels::RowDraw& draw = reading_.draws[index];
  return {.finite = IsFinite(draw.row),
          .token_id = draw.drawn.id,
          .logprob = draw.drawn.logit - draw.log_sum_exp,
          .top = TopLogprobs(draw_bests_[index], draw.log_sum_exp)};
}

TokenScore LogitsReader::Score(size_t index) const {
  const ScorePlace& score = scores_[index];
  const float log_sum_exp = reading_.log_sum_exp[score.row];
  std::optional<float> logprob;
  if (score.token != kNone) logprob = reading_.tokens[score.token].logit - log_sum_exp;
  return {.finite = !std::isnan(log_sum_exp),
          .logprob = logprob,
          .top = TopLogprobs(score.best, log_sum_exp)};
}

bool LogitsReader::IsFinite(int64_t row) const { return !std::isnan(reading_.log_sum_exp[row]); }

}  // namespace ovq::model
