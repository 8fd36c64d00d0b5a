#include "model/sampler.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

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
  for (int32_t id : tokens) MarkSeen(id);
}

void Sampler::Observe(int32_t token) {
  MarkSeen(token);
  if (params_.presence_penalty == 0.0f && params_.frequency_penalty == 0.0f) return;
  const auto [at, is_new] = place_of_.try_emplace(token, generated_.size());
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
