#include "server/engine/engine_loop.h"

#include <algorithm>

#include "absl/time/clock.h"

namespace ovq {

bool WaitFor(std::condition_variable& cv, std::unique_lock<std::mutex>& lock,
             absl::Duration timeout, const std::function<bool()>& pred) {
  // Longer waits would overflow the clock's arithmetic.
  if (timeout > absl::Hours(24 * 365)) {
    cv.wait(lock, pred);
    return true;
  }
  return cv.wait_for(lock, absl::ToChronoNanoseconds(timeout), pred);
}

void Doorbell::Ring() {
  {
    std::lock_guard lock(mutex_);
    rung_ = true;
  }
  cv_.notify_one();
}

void Doorbell::Wait(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  WaitFor(cv_, lock, timeout, [this] { return rung_; });
  rung_ = false;
}

Engine::Loop::Loop(const EngineModel& model, const EngineOptions& options,
                   std::unique_ptr<DeviceContext> context, EngineEvents events)
    : model_(model),
      options_(options),
      events_(std::move(events)),
      layout_(*model.layout),
      context_(std::move(context)),
      pool_(layout_, options.state_memory_bytes, *context_),
      session_slots_(SessionSlots(layout_, model.default_slot_cap, options.state_memory_bytes,
                                  options.max_sessions)),
      random_(options.seed) {
  PublishStats();
  thread_ = std::thread([this] { Run(); });
}

Engine::Loop::~Loop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  doorbell_->Ring();
  thread_.join();
}

void Engine::Loop::Run() {
  context_->BindThread();
  bool progressed = false;
  for (;;) {
    if (!progressed) doorbell_->Wait(NextTimer());
    if (!RunInbox()) break;
    const absl::Time now = absl::Now();
    ExpireSessions(now);
    EndDeadJobs(now);
    Admit();
    // A step may take long, or hang: what begins with it shows before it.
    if (running_.size() != published_running_) PublishStats();
    progressed = Step();
    std::erase_if(running_, [](const std::shared_ptr<Job>& job) { return job->ended; });
    PublishStats();
  }
  std::lock_guard lock(mutex_);
  for (const auto& [id, session] : sessions_) pool_.Release(session->state);
}

bool Engine::Loop::RunInbox() {
  std::deque<Command> commands;
  std::array<int, kRejectReasons> refused;
  bool stopping;
  {
    std::lock_guard lock(mutex_);
    commands.swap(inbox_);
    refused = refused_;
    refused_.fill(0);
    stopping = stopping_;
  }
  for (Command& command : commands) command();
  for (size_t reason = 0; reason < refused.size(); ++reason) {
    for (int i = 0; i < refused[reason] && events_.rejected; ++i) {
      events_.rejected(static_cast<RejectReason>(reason));
    }
  }
  return !stopping;
}

bool Engine::Loop::EndIfDead(Job& job, absl::Time now) {
  if (GenerateWork* work = job.generate(); work != nullptr && work->stream->cancelled()) {
    const absl::Time cancelled = work->stream->cancel_time();
    Fail(job, FinishReason::kCancelled, absl::CancelledError("cancelled by the caller"));
    if (events_.cancel_released) events_.cancel_released(absl::Now() - cancelled);
    return true;
  }
  if (ScoreWork* work = job.score(); work != nullptr && work->cancelled && work->cancelled()) {
    Fail(job, FinishReason::kCancelled, absl::CancelledError("cancelled by the caller"));
    return true;
  }
  if (job.deadline > now) return false;
  const char* where = job.admitted == absl::UnixEpoch() ? "in the queue"
                      : job.prefilling()                ? "while absorbing the prompt"
                                                        : "while generating";
  Fail(job, FinishReason::kDeadline,
       absl::DeadlineExceededError(std::string("deadline passed ") + where));
  return true;
}

void Engine::Loop::EndDeadJobs(absl::Time now) {
  for (const std::shared_ptr<Job>& job : running_) {
    if (!job->ended) EndIfDead(*job, now);
  }
  int ended = 0;
  std::erase_if(queue_, [&](const std::shared_ptr<Job>& job) {
    const bool dead = job->ended || EndIfDead(*job, now);
    ended += dead;
    return dead;
  });
  if (ended == 0) return;
  std::lock_guard lock(mutex_);
  waiting_ -= ended;
}

void Engine::Loop::AbortAll() {
  const absl::Status status = absl::UnavailableError("the server is shutting down");
  for (const std::shared_ptr<Job>& job : running_) {
    if (!job->ended) Fail(*job, FinishReason::kError, status);
  }
  for (const std::shared_ptr<Job>& job : queue_) Fail(*job, FinishReason::kError, status);
  std::lock_guard lock(mutex_);
  waiting_ -= static_cast<int>(queue_.size());
  queue_.clear();
}

absl::Duration Engine::Loop::NextTimer() const {
  absl::Time next = next_expiry_;
  for (const std::shared_ptr<Job>& job : running_) {
    if (!job->ended) next = std::min(next, job->deadline);
  }
  bool score_waits = false;
  for (const std::shared_ptr<Job>& job : queue_) {
    next = std::min(next, job->deadline);
    score_waits |= job->score() != nullptr;
  }
  const absl::Time now = absl::Now();
  // A score's caller cannot ring the bell when it gives up, it has to be asked.
  if (score_waits) next = std::min(next, now + absl::Milliseconds(50));
  return std::max(next - now, absl::ZeroDuration());
}

void Engine::Loop::PublishStats() {
  published_running_ = running_.size();
  EngineStats stats;
  stats.state_bytes_committed = pool_.committed_bytes();
  stats.state_bytes_reserved = pool_.reserved_bytes();
  stats.state_bytes_budget = pool_.budget_bytes();
  stats.session_slots = session_slots_;
  const auto add = [&](const Session& session) {
    stats.live_slots += layout_.LiveSlotsAt(session.state.position, session.state.slot_cap);
    stats.equivalent_kv_cache_bytes +=
        static_cast<size_t>(session.position()) * model_.full_kv_bytes_per_token;
  };
  for (const std::shared_ptr<Job>& job : running_) {
    if (job->ended) continue;
    ++stats.requests_running;
    const GenerateWork* work = job->generate();
    if (work != nullptr && work->blocked_since) ++stats.requests_blocked;
    if (work != nullptr && work->named_session) continue;  // counted in the table
    if (job->session->state.base != nullptr) add(*job->session);
    if (work == nullptr) continue;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      const Session* session = completion->session.get();
      if (session == nullptr || session == job->session.get()) continue;
      if (session->state.base != nullptr) add(*session);
    }
  }
  for (const std::shared_ptr<Job>& job : queue_) stats.waiting_prompt_tokens += job->prompt_tokens;

  std::lock_guard lock(mutex_);
  for (const auto& [id, session] : sessions_) {
    add(*session);
    if (!session->busy) ++stats.sessions_idle;
  }
  stats.sessions_active = pool_.sessions() - stats.sessions_idle;
  stats.requests_waiting = waiting_;
  stats_ = stats;
}

}  // namespace ovq
