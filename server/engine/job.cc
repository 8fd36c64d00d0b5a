#include "server/engine/job.h"

#include <algorithm>
#include <string>
#include <utility>

namespace ovq {
namespace {

// State bytes after at most `tokens` + `more` tokens, which may be a huge number.
size_t BytesWithin(const StateLayout& layout, int64_t tokens, int64_t more, int32_t cap) {
  constexpr int64_t kFar = int64_t{1} << 52;  // beyond it no dictionary grows any more
  int64_t reach = tokens + std::min(more, kFar);
  if (layout.has_unbounded()) reach = std::min(reach, layout.limits().max_unbounded_tokens);
  return layout.bytes_at(reach, cap);
}

}  // namespace

std::shared_ptr<Job> NewJob(const EngineModel& model, CallRequest& request, int64_t max_tokens,
                            SteadyTime now) {
  auto job = std::make_shared<Job>();
  job->tenant = request.tenant;
  job->client = request.client;
  job->arrival = request.arrival.value_or(now);
  job->deadline = request.deadline;
  job->tokens = std::move(request.prompt);
  job->prompt_tokens = static_cast<int64_t>(job->tokens.size());
  job->cacheable = request.cacheable;
  job->memory = model.FindMemory(request.memory);
  job->slot_cap = request.slot_cap.value_or(job->memory->default_slot_cap);
  job->reserve_bytes =
      BytesWithin(*job->memory->layout, job->prompt_tokens, max_tokens, job->slot_cap);
  return job;
}

const CancelSignal* Job::cancel_signal() const {
  if (const GenerateWork* work = generate()) return &work->stream->cancel_signal();
  if (const ScoreWork* work = score()) return work->cancel.get();
  if (const RewindWork* work = rewind()) return work->cancel.get();
  if (const OpenWork* work = open()) return work->cancel.get();
  return nullptr;
}

absl::Status DeathOf(const Job& job, SteadyTime now) {
  const CancelSignal* cancel = job.cancel_signal();
  if (job.session != nullptr && job.session->deleted) {
    return absl::CancelledError("the session was deleted");
  }
  if (cancel != nullptr && cancel->cancelled()) {
    return absl::CancelledError("cancelled by the caller");
  }
  if (job.deadline > now) return absl::OkStatus();
  const char* where = !job.admitted      ? "in the queue"
                      : job.rewind()     ? "while reading again what it goes back to"
                      : job.prefilling() ? "while absorbing the prompt"
                                         : "while generating";
  return absl::DeadlineExceededError(std::string("deadline passed ") + where);
}

std::shared_ptr<Job> MakeJob(const EngineModel& model, GenerateRequest request,
                             std::shared_ptr<TokenStream> stream, SteadyTime now) {
  auto job = NewJob(model, request, request.stop.max_tokens, now);
  job->n_states = request.n;
  job->work = GenerateWork{.request = std::move(request),
                           .stream = std::move(stream),
                           .completions = {},
                           .first = {},
                           .blocked_since = std::nullopt};
  return job;
}

std::shared_ptr<Job> MakeJob(const EngineModel& model, ScoreRequest request,
                             std::shared_ptr<CancelSignal> cancel, ScoreCallback done,
                             SteadyTime now) {
  auto job = NewJob(model, request, 0, now);
  ScoreWork work{.top_logprobs = request.top_logprobs,
                 .cancel = std::move(cancel),
                 .done = std::move(done),
                 .result = {}};
  work.result.rows.reserve(job->tokens.size());
  job->work = std::move(work);
  return job;
}

}  // namespace ovq
