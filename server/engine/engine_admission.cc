// From an accepted job to a running one: exact admission by reservation, first come first served.
#include <utility>

#include "absl/time/clock.h"
#include "base/check.h"
#include "server/engine/engine_loop.h"

namespace ovq {

std::optional<TenantQuotas::Refusal> Engine::Loop::ChargeTenant(Job& job, int64_t states,
                                                                size_t bytes) {
  auto admitted = options_.quotas->Admit(
      job.tenant, {.prompt_tokens = job.prompt_tokens, .sessions = states, .bytes = bytes});
  if (auto* over = std::get_if<TenantQuotas::Refusal>(&admitted)) return std::move(*over);
  job.hold = std::get<QuotaHold>(std::move(admitted));
  return std::nullopt;
}

void Engine::Loop::Admit() {
  while (!queue_.empty() && TryAcquire(*queue_.front())) {
    std::shared_ptr<Job> job = std::move(queue_.front());
    queue_.pop_front();
    {
      std::lock_guard lock(mutex_);
      --waiting_;
    }
    Start(std::move(job));
  }
}

bool Engine::Loop::TryAcquire(Job& job) {
  if (live_states() + job.n_states > options_.max_sessions) return false;
  // The states of further completions are forked from the first; until then it holds their share.
  absl::StatusOr<StateHandle> state =
      pool_.Acquire(job.slot_cap, job.reserve_bytes * static_cast<size_t>(job.n_states));
  if (!state.ok()) return false;
  job.session = std::make_shared<Session>();
  job.session->state = *state;
  job.unforked_states = job.n_states - 1;
  promised_states_ += job.unforked_states;
  return true;
}

void Engine::Loop::StartOnSession(std::shared_ptr<Job> job) {
  GenerateWork& work = *job->generate();
  work.stream->SetWake([bell = doorbell_] { bell->Ring(); });
  job->cached_tokens = job->session->position();
  if (job->session->pending) job->rows.insert(job->rows.begin(), *job->session->pending);
  if (job->session->deleted) {  // by a call that came between Submit and now
    Fail(*job, FinishReason::kCancelled, absl::CancelledError("the session was deleted"));
    return;
  }
  if (EndIfDead(*job, absl::Now())) return;
  Start(std::move(job));
}

void Engine::Loop::Start(std::shared_ptr<Job> job) {
  job->admitted = absl::Now();
  job->order = next_order_++;
  const int64_t n_rows = static_cast<int64_t>(job->rows.size());
  job->n_feed = WantsToken(*job) || job->score() != nullptr ? n_rows : n_rows - 1;
  if (GenerateWork* work = job->generate()) {
    GenerateRequest& request = work->request;
    if (request.sampling.seed == 0 && !request.seed_given) request.sampling.seed = random_.Next();
    for (int i = 0; i < request.n; ++i) {
      work->completions.push_back(
          std::make_unique<Completion>(request, i, request.sampling.seed + static_cast<uint64_t>(i),
                                       model_.eos_token_ids, model_.vocab_size, model_.tokenizer));
      work->completions.back()->ObservePrompt(job->rows);
    }
    StreamEvent event;
    event.started = Started{.session_id = request.session_id,
                            .prompt_tokens = job->prompt_tokens,
                            .cached_tokens = job->cached_tokens,
                            .seed = request.sampling.seed};
    work->stream->Push(std::move(event));
  }
  running_.push_back(job);
  if (!job->prefilling()) FinishPrefill(*job);
}

}  // namespace ovq
