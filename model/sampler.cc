#include "model/sampler.h"

#include <utility>

namespace ovq {

Sampler::Sampler(SamplingParams params, int64_t vocab_size)
    : params_{.temperature = params.temperature,
              .top_k = params.top_k,
              .top_p = params.top_p,
              .min_p = params.min_p,
              .typical_p = params.typical_p,
              .repetition_penalty = params.repetition_penalty,
              .presence_penalty = params.presence_penalty,
              .frequency_penalty = params.frequency_penalty,
              .seed = params.seed} {
  for (const auto& [id, bias] : params.logit_bias) bias_.push_back({id, bias});
  if (params_.repetition_penalty != 1.0f) is_seen_.resize(static_cast<size_t>(vocab_size));
}

void Sampler::MarkSeen(int32_t id) {
  if (is_seen_.empty() || is_seen_[id]) return;
  is_seen_[id] = true;
  seen_.push_back(id);
}

void Sampler::ObservePrompt(std::span<const int32_t> tokens) {
  if (is_seen_.empty()) return;
  for (int32_t id : tokens) MarkSeen(id);
}

void Sampler::Observe(int32_t token) {
  MarkSeen(token);
  if (params_.presence_penalty == 0.0f && params_.frequency_penalty == 0.0f) return;
  const auto [at, is_new] = generated_index_.try_emplace(token, generated_.size());
  if (is_new) generated_.push_back({token, 0});
  ++generated_[at->second].count;
}

RowDraw Sampler::Describe(int64_t row, int64_t position, std::span<const int32_t> banned) const {
  return {.row = row,
          .position = position,
          .params = params_,
          .seen = seen_,
          .generated = generated_,
          .bias = bias_,
          .banned = banned};
}

}  // namespace ovq
