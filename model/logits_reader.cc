#include "model/logits_reader.h"

#include <cmath>

namespace ovq {

void LogitsReader::Clear() {
  reading_.Clear();
  draws_.clear();
  scores_.clear();
  checks_.clear();
  next_draw_ = next_score_ = next_check_ = 0;
}

size_t LogitsReader::WantBest(int64_t row, int n) {
  if (n <= 0) return kNone;
  reading_.bests.push_back({.row = row, .n = n, .best = {}});
  return reading_.bests.size() - 1;
}

void LogitsReader::WantDraw(Sampler& sampler, int64_t row, int64_t position, int top_logprobs,
                            std::span<const int32_t> banned) {
  reading_.draws.push_back(sampler.Describe(row, position, banned));
  draws_.push_back({&sampler, WantBest(row, top_logprobs)});
}

void LogitsReader::WantScore(int64_t row, std::optional<int32_t> token, int top_logprobs) {
  size_t place = kNone;
  if (token) {
    place = reading_.tokens.size();
    reading_.tokens.push_back({.row = row, .id = *token});
  }
  scores_.push_back({row, place, WantBest(row, top_logprobs)});
}

void LogitsReader::WantCheck(int64_t row) { checks_.push_back(row); }

void LogitsReader::Read(DeviceContext& context, TensorView logits) {
  ReadLogits(context, logits, reading_);
  for (size_t i = 0; i < draws_.size(); ++i) {
    draws_[i].sampler->Observe(reading_.draws[i].drawn.id);
  }
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

Sampled LogitsReader::NextDraw() {
  const RowDraw& draw = reading_.draws[next_draw_];
  const float log_sum_exp = reading_.log_sum_exp[draw.row];
  return {.finite = !std::isnan(log_sum_exp),
          .token_id = draw.drawn.id,
          .logprob = draw.drawn.logit - log_sum_exp,
          .top = TopLogprobs(draws_[next_draw_++].best, log_sum_exp)};
}

TokenScore LogitsReader::NextScore() {
  const Score& score = scores_[next_score_++];
  const float log_sum_exp = reading_.log_sum_exp[score.row];
  TokenScore result{.finite = !std::isnan(log_sum_exp), .logprob = {}, .top = {}};
  if (score.token != kNone) {
    result.logprob = reading_.tokens[score.token].logit - log_sum_exp;
  }
  result.top = TopLogprobs(score.best, log_sum_exp);
  return result;
}

bool LogitsReader::NextCheck() { return !std::isnan(reading_.log_sum_exp[checks_[next_check_++]]); }

}  // namespace ovq
