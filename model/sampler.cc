#include "model/sampler.h"

#include <algorithm>

namespace ovq::model {

Sampler::Sampler(const SamplingParams& params, int64_t vocab_size) : params_(params) {
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
  if (!counts_generated()) return;
  const auto [at, is_new] = generated_index_.try_emplace(token, generated_.size());
  if (is_new) generated_.push_back({token, 0});
  ++generated_[at->second].count;
}

kernels::RowDraw Sampler::Describe(int64_t row, int64_t position, std::span<const int32_t> banned,
                                   std::span<const int32_t> drafted, DraftedCounts* counts) const {
  kernels::RowDraw draw = {.row = row,
                           .position = position,
                           .params = params_,
                           .seen = seen_,
                           .generated = generated_,
                           .bias = bias_,
                           .banned = banned};
  std::vector<int32_t> unseen;
  for (const int32_t token : drafted) {
    if (is_seen_.empty() || is_seen_[token] || std::ranges::count(unseen, token) > 0) continue;
    unseen.push_back(token);
  }
  if (!unseen.empty()) {
    counts->seen = seen_;
    counts->seen.insert(counts->seen.end(), unseen.begin(), unseen.end());
    draw.seen = counts->seen;
  }
  if (!counts_generated() || drafted.empty()) return draw;
  counts->generated = generated_;
  for (const int32_t token : drafted) {
    const auto known = generated_index_.find(token);
    const auto begin = counts->generated.begin();
    const auto at =
        known != generated_index_.end()
            ? begin + static_cast<std::ptrdiff_t>(known->second)
            : std::find_if(begin + std::ssize(generated_), counts->generated.end(),
                           [&](const kernels::TokenCount& entry) { return entry.id == token; });
    if (at == counts->generated.end()) {
      counts->generated.push_back({token, 1});
    } else {
      ++at->count;
    }
  }
  draw.generated = counts->generated;
  return draw;
}

}  // namespace ovq::model
