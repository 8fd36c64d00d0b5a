#include "server/calls/generation.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/engine/common/limits.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

absl::Status Map(const v1::GenerateRequest& from, ServiceContext& services,
                 engine::GenerateRequest& to) {
  PromptPlace place;
  if (from.has_session_id()) {
    RETURN_IF_ERROR(engine::CheckSessionId(from.session_id(), ""));
    to.session_id = from.session_id();
    place = FindPromptPlace(services.engine, to.session_id, to.tenant);
  }
  to.variant = from.memory();
  if (from.has_max_centroids()) to.slot_cap = static_cast<int32_t>(from.max_centroids());
  return SetGeneration(from, place, services, to);
}

}  // namespace

absl::Status SubmitGenerate(const v1::GenerateRequest& message, CallRecord& call,
                            std::shared_ptr<engine::TokenStream> stream,
                            std::optional<int> prompt_scores) {
  engine::Engine& engine = call.services().engine;
  call.summary().SetSession(message.session_id());
  engine::GenerateRequest request;
  call.SetCaller(request);
  request.arrival = call.arrival();
  RETURN_IF_ERROR(Map(message, call.services(), request));
  request.output.prompt_scores = prompt_scores;
  const size_t score_bytes =
      sizeof(model::TokenScore) +
      sizeof(model::TokenLogprob) * static_cast<size_t>(prompt_scores.value_or(0));
  RETURN_IF_ERROR(ReserveBytes(
      call.memory(),
      StreamBytes(request) + (prompt_scores ? 2 * score_bytes * request.prompt.size() : 0)));
  return engine.Submit(std::move(request), std::move(stream));
}

absl::Status CheckGenerate(const v1::GenerateRequest& message, CallRecord& call) {
  engine::GenerateRequest request;
  call.SetCaller(request);
  RETURN_IF_ERROR(Map(message, call.services(), request));
  return engine::ValidateGenerate(call.services().engine.config(), request);
}

absl::Status SubmitScore(const v1::ScoreRequest& message, std::vector<int32_t> tokens,
                         CallRecord& call, ScoreDone done) {
  engine::ScoreRequest request;
  request.variant = message.memory();
  if (message.has_max_centroids()) request.slot_cap = static_cast<int32_t>(message.max_centroids());
  request.top_logprobs = static_cast<int>(message.top_logprobs());
  // The scores, the message made of them and its bytes. The engine refuses larger answers.
  constexpr size_t kTopBytes =
      sizeof(model::TokenLogprob) + 2 * (sizeof(uint32_t) + sizeof(float)) + 1;
  const size_t per_token = 2 * sizeof(model::TokenScore) + kTopBytes * message.top_logprobs();
  const size_t bytes = std::min(per_token * tokens.size(), 4 * engine::kMaxAnswerBytes);
  RETURN_IF_ERROR(ReserveBytes(call.memory(), bytes));
  request.prompt = std::move(tokens);
  call.SetCaller(request);
  request.arrival = call.arrival();
  return call.services().engine.SubmitScore(
      std::move(request), call.cancel(),
      [&call, done = std::move(done)](absl::StatusOr<engine::ScoreResult> result) {
        absl::StatusOr<std::vector<model::TokenScore>> rows;
        rows = result.ok() ? decltype(rows)(std::move(result->rows)) : result.status();
        // On another thread, which also frees the scores: there may be many.
        call.services().blocking.Run(call.client(), [done, rows = std::move(rows)] { done(rows); });
      });
}

}  // namespace ovq::server
