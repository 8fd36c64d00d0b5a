#include "server/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "server/engine/engine_loop.h"
#include "server/engine/error_facts.h"
#include "server/engine/validate.h"

namespace ovq {
namespace {

absl::Time ArrivalOrNow(absl::Time arrival) {
  return arrival == absl::InfinitePast() ? absl::Now() : arrival;
}

// State bytes after at most `tokens` + `more` tokens, which may be a huge number.
size_t BytesWithin(const StateLayout& layout, int64_t tokens, int64_t more, int32_t cap) {
  constexpr int64_t kFar = int64_t{1} << 52;  // beyond it no dictionary grows any more
  int64_t reach = tokens + std::min(more, kFar);
  if (layout.has_unbounded()) reach = std::min(reach, layout.limits().max_unbounded_tokens);
  return layout.bytes_at(reach, cap);
}

// A cap never exceeds the address range that the layout keeps for it.
EngineOptions WithinLayout(EngineOptions options, const StateLayout* layout) {
  Check(layout != nullptr, "the engine has a model");
  const int64_t limit = layout->limits().max_slot_cap;
  options.max_slot_cap = static_cast<int32_t>(std::min<int64_t>(options.max_slot_cap, limit));
  if (options.quotas == nullptr) options.quotas = std::make_shared<TenantQuotas>();
  return options;
}

}  // namespace

int SessionSlots(const StateLayout& layout, int32_t slot_cap, size_t state_memory_bytes,
                 int max_sessions) {
  const size_t each = std::max<size_t>(layout.bytes_cap(slot_cap), 1);
  return static_cast<int>(std::min(state_memory_bytes / each, static_cast<size_t>(max_sessions)));
}

Engine::Engine(EngineModel model, EngineOptions options, std::unique_ptr<DeviceContext> context,
               EngineEvents events)
    : model_(std::move(model)), options_(WithinLayout(options, model_.layout)) {
  Check(model_.forward != nullptr, "the engine has a model");
  Check(model_.default_slot_cap <= model_.layout->limits().max_slot_cap,
        "the model's own cap fits the layout");
  Check(options_.max_batch_tokens > 0, "a step has room for a row");
  loop_ = std::make_unique<Loop>(model_, options_, std::move(context), std::move(events));
}

Engine::~Engine() { Drain(absl::ZeroDuration()); }

absl::Status Engine::Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) {
  return loop_->Submit(std::move(request), std::move(stream));
}
absl::Status Engine::SubmitScore(ScoreRequest request, std::function<bool()> cancelled,
                                 ScoreCallback done) {
  return loop_->SubmitScore(std::move(request), std::move(cancelled), std::move(done));
}
void Engine::CreateSession(SessionOptions options, SessionCallback done) {
  loop_->CreateSession(std::move(options), std::move(done));
}
absl::StatusOr<SessionInfo> Engine::GetSession(const std::string& id, const std::string& tenant) {
  return loop_->Call<absl::StatusOr<SessionInfo>>(
      [&, loop = loop_.get()] { return loop->GetSession(id, tenant); });
}
absl::Status Engine::DeleteSession(const std::string& id, const std::string& tenant) {
  return loop_->Call<absl::Status>([&, loop = loop_.get(), called = absl::Now()] {
    return loop->DeleteSession(id, tenant, called);
  });
}
absl::StatusOr<Engine::SessionPage> Engine::ListSessions(const std::string& tenant, int page_size,
                                                         const std::string& page_token) {
  return loop_->Call<absl::StatusOr<SessionPage>>(
      [&, loop = loop_.get()] { return loop->ListSessions(tenant, page_size, page_token); });
}
absl::Status Engine::DeleteSessionOfAny(const std::string& id) {
  return loop_->Call<absl::Status>([&, loop = loop_.get(), called = absl::Now()] {
    return loop->DeleteSession(id, std::nullopt, called);
  });
}
absl::StatusOr<Engine::SessionPage> Engine::ListSessionsOfAll(int page_size,
                                                              const std::string& page_token) {
  return loop_->Call<absl::StatusOr<SessionPage>>(
      [&, loop = loop_.get()] { return loop->ListSessions(std::nullopt, page_size, page_token); });
}
absl::Status Engine::ChargeRequest(const std::string& tenant) {
  return loop_->ChargeRequest(tenant);
}
absl::StatusOr<std::vector<std::byte>> Engine::CopyState(const std::string& id,
                                                         const std::string& tenant) {
  return loop_->Call<absl::StatusOr<std::vector<std::byte>>>(
      [&, loop = loop_.get()] { return loop->CopyState(id, tenant); });
}
EngineStats Engine::Stats() const { return loop_->Stats(); }
bool Engine::Drain(absl::Duration timeout) { return loop_->Drain(timeout); }

void Engine::Loop::Post(Command command) {
  {
    std::lock_guard lock(mutex_);
    inbox_.push_back(std::move(command));
  }
  doorbell_->Ring();
}

absl::Status Engine::Loop::Refuse(RejectReason reason, absl::Status status) {
  {
    std::lock_guard lock(mutex_);
    ++refused_[static_cast<size_t>(reason)];
  }
  doorbell_->Ring();
  return WithFacts(std::move(status), {.reason = reason});
}

absl::Status Engine::Loop::Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) {
  if (absl::Status status = ValidateGenerate(model_, options_, request); !status.ok()) {
    return status;
  }
  auto job = std::make_shared<Job>();
  job->tenant = request.tenant;
  job->arrival = ArrivalOrNow(request.arrival);
  job->deadline = request.deadline;
  job->prompt_tokens = static_cast<int64_t>(request.prompt.size());
  job->rows = std::move(request.prompt);
  job->slot_cap = request.slot_cap.value_or(model_.default_slot_cap);
  job->reserve_bytes =
      BytesWithin(layout_, job->prompt_tokens, request.stop.max_tokens, job->slot_cap);
  job->n_states = request.n;
  const bool named_session = !request.session_id.empty();
  job->work = GenerateWork{.request = std::move(request),
                           .stream = std::move(stream),
                           .completions = {},
                           .blocked_since = std::nullopt,
                           .named_session = named_session};
  return named_session ? AttachToSession(std::move(job)) : Enqueue(std::move(job));
}

absl::Status Engine::Loop::SubmitScore(ScoreRequest request, std::function<bool()> cancelled,
                                       ScoreCallback done) {
  if (absl::Status status = ValidateScore(model_, options_, request); !status.ok()) return status;
  auto job = std::make_shared<Job>();
  job->tenant = request.tenant;
  job->arrival = ArrivalOrNow(request.arrival);
  job->deadline = request.deadline;
  job->prompt_tokens = static_cast<int64_t>(request.tokens.size());
  job->rows = std::move(request.tokens);
  job->slot_cap = request.slot_cap.value_or(model_.default_slot_cap);
  job->reserve_bytes = BytesWithin(layout_, job->prompt_tokens, 0, job->slot_cap);
  job->work = ScoreWork{.request = std::move(request),
                        .cancelled = std::move(cancelled),
                        .done = std::move(done),
                        .result = {}};
  return Enqueue(std::move(job));
}

void Engine::Loop::CreateSession(SessionOptions options, SessionCallback done) {
  absl::Status status = ValidateSession(model_, options_, options);
  Post([this, status = std::move(status), options = std::move(options), done = std::move(done),
        called = absl::Now()]() mutable {
    if (status.ok()) {
      OpenSession(std::move(options), called, std::move(done));
    } else {
      done(std::move(status));
    }
  });
}

absl::Status Engine::Loop::Enqueue(std::shared_ptr<Job> job) {
  const size_t needed = job->reserve_bytes * static_cast<size_t>(job->n_states);
  if (needed > options_.state_memory_bytes) {
    return Refuse(RejectReason::kStateMemory,
                  WithFacts(absl::ResourceExhaustedError(
                                absl::StrCat("state memory: ", needed, " bytes needed, the server ",
                                             "has ", options_.state_memory_bytes, " in all")),
                            {.bytes_needed = needed, .bytes_free = options_.state_memory_bytes}));
  }
  if (job->n_states > options_.max_sessions) {
    return Refuse(RejectReason::kSessionLimit,
                  absl::ResourceExhaustedError(absl::StrCat("sessions: ", job->n_states,
                                                            " needed, the server has ",
                                                            options_.max_sessions, " in all")));
  }
  std::unique_lock lock(mutex_);
  if (draining_) {
    lock.unlock();
    return Refuse(RejectReason::kDraining, absl::UnavailableError("the server is draining"));
  }
  if (waiting_ >= options_.max_queue) {
    lock.unlock();
    return Refuse(RejectReason::kQueueFull,
                  absl::ResourceExhaustedError(
                      absl::StrCat("queue: ", options_.max_queue, " requests wait already")));
  }
  // What waits counts too: a tenant at its limits fills no queue.
  if (std::optional<TenantQuotas::Refusal> over = ChargeTenant(*job, job->n_states, needed)) {
    lock.unlock();
    return Refuse(over->reason, over->status);
  }
  ++waiting_;
  ++unfinished_;
  inbox_.push_back([this, job = std::move(job)] {
    // Set here: a stream never holds the wake of a request that was not accepted.
    if (GenerateWork* work = job->generate()) {
      work->stream->SetWake([bell = doorbell_] { bell->Ring(); });
    }
    queue_.push_back(job);
  });
  lock.unlock();
  doorbell_->Ring();
  return absl::OkStatus();
}

absl::Status Engine::Loop::AttachToSession(std::shared_ptr<Job> job) {
  const GenerateRequest& request = job->generate()->request;
  std::unique_lock lock(mutex_);
  if (draining_) {
    lock.unlock();
    return Refuse(RejectReason::kDraining, absl::UnavailableError("the server is draining"));
  }
  absl::StatusOr<std::shared_ptr<Session>> found =
      sessions_.Find(request.session_id, request.tenant);
  if (!found.ok()) return found.status();
  Session& session = **found;
  if (session.busy) {
    return absl::FailedPreconditionError(
        absl::StrCat("session ", session.id, ": in use by another call"));
  }
  if (job->rows.empty() && !session.pending) {
    return EmptyPrompt(request.field_prefix);
  }
  const int64_t position = session.position() + job->prompt_tokens;
  if (absl::Status status = CheckPosition(layout_, position); !status.ok()) return status;
  // The session holds its own share.
  if (std::optional<TenantQuotas::Refusal> over = ChargeTenant(*job, 0, 0)) {
    lock.unlock();
    return Refuse(over->reason, over->status);
  }
  session.busy = true;
  job->session = *std::move(found);
  ++unfinished_;
  inbox_.push_back([this, job = std::move(job)] { StartOnSession(job); });
  lock.unlock();
  doorbell_->Ring();
  return absl::OkStatus();
}

absl::Status Engine::Loop::ChargeRequest(const std::string& tenant) {
  Job job;
  job.tenant = tenant;
  if (std::optional<TenantQuotas::Refusal> over = ChargeTenant(job, 0, 0)) {
    return Refuse(over->reason, over->status);
  }
  return absl::OkStatus();
}

EngineStats Engine::Loop::Stats() const {
  std::unique_lock lock(mutex_);
  EngineStats stats = stats_;
  lock.unlock();
  stats.gpu = context_->Gpu();
  return stats;
}

bool Engine::Loop::Drain(absl::Duration timeout) {
  const auto nothing_runs = [this] { return unfinished_ == 0; };
  std::unique_lock lock(mutex_);
  draining_ = true;
  if (WaitFor(all_ended_, lock, timeout, nothing_runs)) return true;
  inbox_.push_back([this] { AbortAll(); });
  doorbell_->Ring();
  all_ended_.wait(lock, nothing_runs);
  return false;
}

}  // namespace ovq
