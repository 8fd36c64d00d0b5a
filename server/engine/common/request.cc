#include "server/engine/common/request.h"

#include <algorithm>
#include <string>
#include <utility>

namespace ovq::engine {
namespace {

// State bytes after at most `tokens` + `more` tokens; `more` may be huge.
size_t BytesWithin(const model::StateLayout& layout, int64_t tokens, int64_t more, int32_t cap) {
  constexpr int64_t kFar = int64_t{1} << 52;  // beyond it no dictionary grows any more
  int64_t reach = tokens + std::min(more, kFar);
  if (layout.has_unbounded()) reach = std::min(reach, layout.limits().max_unbounded_tokens);
  return layout.bytes_at(reach, cap);
}

}  // namespace

std::shared_ptr<Request> NewRequest(const EngineModel& model, CallRequest& call, int64_t max_tokens,
                                    SteadyTime now) {
  auto request = std::make_shared<Request>();
  request->tenant = call.tenant;
  request->client = call.client;
  request->arrival = call.arrival.value_or(now);
  request->deadline = call.deadline;
  request->tokens = std::move(call.prompt);
  request->prompt_tokens = static_cast<int64_t>(request->tokens.size());
  request->cacheable = call.cacheable;
  request->shared_tokens = call.shared_tokens;
  request->variant = model.FindVariant(call.variant);
  request->slot_cap = call.slot_cap.value_or(request->variant->default_slot_cap);
  request->reserve_bytes =
      BytesWithin(*request->variant->layout, request->prompt_tokens, max_tokens, request->slot_cap);
  return request;
}

absl::Status CheckAlive(const Request& request, SteadyTime now) {
  if (request.session != nullptr && request.session->deleted) {
    const Session& session = *request.session;
    return session.lost ? LostSession(session.info.id)
                        : absl::CancelledError("the session was deleted");
  }
  if (request.cancel != nullptr && request.cancel->cancelled()) {
    return absl::CancelledError("cancelled by the caller");
  }
  if (request.deadline > now) return absl::OkStatus();
  const char* where = !request.admitted                  ? "in the queue"
                      : request.is(SessionWork::kRewind) ? "while replaying what it goes back to"
                      : request.prefilling()             ? "while the prompt was prefilled"
                                                         : "while generating";
  return absl::DeadlineExceededError(std::string("deadline passed ") + where);
}

std::shared_ptr<Request> MakeRequest(const EngineModel& model, GenerateRequest call,
                                     std::shared_ptr<TokenStream> stream, SteadyTime now) {
  const bool may_go_on = call.prompt.empty() && !call.rewrites;
  auto request = NewRequest(model, call, call.stop.max_tokens, now);
  request->may_go_on = may_go_on;
  request->n_states = call.n;
  request->cancel = {stream, &stream->cancel_signal()};
  if (call.output.prompt_scores) request->cacheable = 0;
  auto& work = request->work.emplace<GenerateWork>(std::move(call), std::move(stream));
  if (work.call.output.prompt_scores) work.prompt_scores.reserve(request->tokens.size());
  return request;
}

std::shared_ptr<Request> MakeRequest(const EngineModel& model, ScoreRequest call,
                                     std::shared_ptr<CancelSignal> cancel, ScoreCallback done,
                                     SteadyTime now) {
  auto request = NewRequest(model, call, 0, now);
  request->cancel = std::move(cancel);
  auto& work = request->work.emplace<ScoreWork>(call.top_logprobs, std::move(done));
  work.result.rows.reserve(request->tokens.size());
  return request;
}

}  // namespace ovq::engine
