#include "server/engine/validate.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

constexpr int kMaxCompletions = 64;
constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;  // of one string: bounds the work per token
constexpr size_t kMaxScoreResultBytes = size_t{1} << 30;

template <class... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status CheckIds(const char* field, std::span<const int32_t> ids, int64_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return Invalid(field, "[", i, "]: token id ", ids[i], " is outside the vocabulary of ",
                     vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const char* field, std::span<const int32_t> tokens,
                         const EngineModel& model, const EngineOptions& options) {
  if (static_cast<int64_t>(tokens.size()) > options.max_prompt_tokens) {
    return Invalid(field, ": ", tokens.size(), " tokens, at most ", options.max_prompt_tokens);
  }
  return CheckIds(field, tokens, model.vocab_size);
}

absl::Status CheckSlotCap(const EngineModel& model, const EngineOptions& options,
                          const std::optional<int32_t>& slot_cap) {
  if (!slot_cap) return absl::OkStatus();
  if (!model.layout->has_slot_cap()) {
    return Invalid("max_centroids: the model has no layer with centroids");
  }
  if (*slot_cap < 2 || *slot_cap > options.max_slot_cap) {
    return Invalid("max_centroids: ", *slot_cap, " is outside [2, ", options.max_slot_cap, "]");
  }
  return absl::OkStatus();
}

absl::Status CheckTopLogprobs(const EngineModel& model, int top_logprobs) {
  if (top_logprobs >= 0 && top_logprobs <= model.vocab_size) return absl::OkStatus();
  return Invalid("top_logprobs: ", top_logprobs, " is outside [0, ", model.vocab_size, "]");
}

absl::Status CheckStop(const EngineModel& model, const StopConditions& stop) {
  if (stop.max_tokens < 0) return Invalid("max_tokens: ", stop.max_tokens, " is negative");
  if (stop.min_tokens < 0 || stop.min_tokens > stop.max_tokens) {
    return Invalid("min_tokens: ", stop.min_tokens,
                   " is outside [0, max_tokens = ", stop.max_tokens, "]");
  }
  if (stop.strings.size() > kMaxStopStrings) {
    return Invalid("stop_strings: ", stop.strings.size(), " strings, at most ", kMaxStopStrings);
  }
  for (size_t i = 0; i < stop.strings.size(); ++i) {
    if (stop.strings[i].empty()) return Invalid("stop_strings[", i, "]: empty");
    if (stop.strings[i].size() > kMaxStopBytes) {
      return Invalid("stop_strings[", i, "]: ", stop.strings[i].size(), " bytes, at most ",
                     kMaxStopBytes);
    }
  }
  if (!stop.strings.empty() && (model.tokenizer == nullptr || !model.tokenizer->has_text())) {
    return absl::FailedPreconditionError("stop_strings: the model has no tokenizer");
  }
  return CheckIds("stop_token_ids", stop.token_ids, model.vocab_size);
}

}  // namespace

absl::Status CheckPosition(const StateLayout& layout, int64_t position) {
  const int64_t limit = layout.limits().max_unbounded_tokens;
  if (!layout.has_unbounded() || position <= limit) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("position ", position, " is beyond the ", limit,
                                            " tokens that full-attention layers can hold"));
}

absl::Status ValidateGenerate(const EngineModel& model, const EngineOptions& options,
                              const GenerateRequest& request) {
  const bool one_shot = request.session_id.empty();
  if (one_shot && request.prompt.empty()) return Invalid("prompt: empty");
  if (request.n < 1 || request.n > kMaxCompletions) {
    return Invalid("n: ", request.n, " is outside [1, ", kMaxCompletions, "]");
  }
  if (!one_shot && request.n > 1) return Invalid("n: ", request.n, ", must be 1 with a session");
  if (!one_shot && request.slot_cap) {
    return Invalid("max_centroids: belongs to the session, set it when the session is created");
  }
  absl::Status status = CheckPrompt("prompt", request.prompt, model, options);
  if (status.ok()) status = CheckSlotCap(model, options, request.slot_cap);
  if (status.ok()) status = request.sampling.Validate(model.vocab_size);
  if (status.ok()) status = CheckStop(model, request.stop);
  if (status.ok()) status = CheckTopLogprobs(model, request.output.top_logprobs);
  if (status.ok() && one_shot) {
    status = CheckPosition(*model.layout, static_cast<int64_t>(request.prompt.size()));
  }
  return status;
}

absl::Status ValidateScore(const EngineModel& model, const EngineOptions& options,
                           const ScoreRequest& request) {
  if (request.tokens.empty()) return Invalid("prompt: empty");
  absl::Status status = CheckPrompt("prompt", request.tokens, model, options);
  if (status.ok()) status = CheckSlotCap(model, options, request.slot_cap);
  if (status.ok()) status = CheckTopLogprobs(model, request.top_logprobs);
  if (status.ok()) {
    status = CheckPosition(*model.layout, static_cast<int64_t>(request.tokens.size()));
  }
  if (!status.ok()) return status;
  const size_t per_token = sizeof(float) + sizeof(std::vector<TokenLogprob>) +
                           static_cast<size_t>(request.top_logprobs) * sizeof(TokenLogprob);
  const size_t bytes = request.tokens.size() * per_token;
  if (bytes <= kMaxScoreResultBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("top_logprobs: the result would take ", bytes, " bytes, at most ",
                   kMaxScoreResultBytes, "; score fewer tokens in one call or ask for fewer"));
}

absl::Status ValidateSession(const EngineModel& model, const EngineOptions& options,
                             const SessionOptions& session) {
  if (session.ttl < absl::ZeroDuration()) return Invalid("ttl: negative");
  absl::Status status = CheckSlotCap(model, options, session.slot_cap);
  if (status.ok()) status = CheckPrompt("prompt", session.prompt, model, options);
  if (status.ok()) {
    status = CheckPosition(*model.layout, static_cast<int64_t>(session.prompt.size()));
  }
  return status;
}

}  // namespace ovq
