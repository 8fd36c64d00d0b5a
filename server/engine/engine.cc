#include "server/engine/engine.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/thread_name.h"
#include "server/engine/error_facts.h"
#include "server/engine/validate.h"

namespace ovq {
namespace {

EngineConfig Completed(EngineConfig config) {
  const EngineModel& model = config.model;
  EngineOptions& options = config.options;
  Check(!model.memories.empty(), "the engine has a model");
  for (const EngineMemory& memory : model.memories) {
    // No cap exceeds the address range that the layout keeps for it.
    const int64_t limit = memory.layout->limits().max_slot_cap;
    Check(memory.default_slot_cap <= limit, "the model's own cap fits the layout");
    options.max_slot_cap = static_cast<int32_t>(std::min<int64_t>(options.max_slot_cap, limit));
  }
  Check(options.max_batch_tokens > 0, "a step has room for a row");
  if (options.quotas == nullptr) options.quotas = std::make_shared<TenantQuotas>(options.clock);
  if (options.request_memory == nullptr) {
    options.request_memory = std::make_shared<ByteBudget>(size_t{1} << 30);
  }
  return config;
}

// Whether a session begins with the tokens that an export of it had.
absl::Status CheckGoesOn(const std::string& id, const SessionImage& session,
                         const SessionBase& since) {
  const auto refused = [&id](const auto&... what) {
    return absl::FailedPreconditionError(absl::StrCat("session ", id, ": ", what...));
  };
  if (!session.tokens) return refused("keeps no tokens (keep_tokens), so there is no delta of it");
  if (since.length > session.length()) {
    return refused("has ", session.length(), " tokens, but the export that `since` names had ",
                   since.length, ": it has gone back since; export it whole");
  }
  const auto length = static_cast<size_t>(since.length);
  if (BaseOf(std::span(*session.tokens).first(length)).digest == since.digest) return {};
  return refused("its first ", since.length,
                 " tokens are not those of the export that `since` names: it has gone back and on "
                 "another way since, or that was another session's; export it whole");
}

}  // namespace

Engine::Engine(EngineConfig config, std::unique_ptr<DeviceContext> context)
    : config_(Completed(std::move(config))),
      context_(std::move(context)),
      pool_(config_.options.state_memory_bytes, *context_),
      random_(config_.options.seed),
      admission_(config_, pool_),
      sessions_(config_, pool_, admission_, random_, inbox_,
                [this](std::shared_ptr<Job> job) { runner_.Start(std::move(job)); }),
      runner_(config_, pool_, admission_, sessions_, random_, watch_),
      step_(config_, *context_, pool_),
      session_slots_(SessionSlots(
          *config_.model.memories.front().layout, config_.model.memories.front().default_slot_cap,
          config_.options.state_memory_bytes, config_.options.max_sessions)) {
  admission_.SetGiveWay([this](const std::string& client, bool table, bool running) {
    return sessions_.GiveWay(client, table) || (running && runner_.GiveWay(client));
  });
  PublishStats();
}

// --- any thread ---

absl::Status Engine::Submit(GenerateRequest request, std::shared_ptr<TokenStream> stream) {
  if (absl::Status status = ValidateGenerate(config_, request); !status.ok()) return status;
  stream->cancel_signal().SetWake(Wake());
  const bool turn = !request.session_id.empty();
  auto job = MakeJob(model(), std::move(request), std::move(stream), options().clock.steady());
  if (turn) return SubmitTurn(std::move(job));
  absl::Status status = admission_.Enqueue(std::move(job));
  inbox_->Ring();
  return status;
}

absl::Status Engine::SubmitTurn(std::shared_ptr<Job> job) {
  if (absl::Status status = admission_.Enter(); !status.ok()) return status;
  const GenerateRequest& request = job->generate()->request;
  if (sessions_.MayBeElsewhere(request.session_id)) {
    inbox_->Post([this, job = std::move(job), id = request.session_id, tenant = request.tenant] {
      sessions_.Fetch(id, tenant, [this, job](absl::Status status) {
        if (status.ok()) status = Claim(*job);
        if (!status.ok()) return runner_.Fail(*job, FinishReason::kError, std::move(status));
        runner_.StartTurn(job);
      });
    });
    return absl::OkStatus();
  }
  if (absl::Status status = Claim(*job); !status.ok()) {
    admission_.Leave();
    return status;
  }
  inbox_->Post([this, job = std::move(job)] { runner_.StartTurn(job); });
  return absl::OkStatus();
}

absl::Status Engine::Claim(Job& job) {
  const GenerateRequest& request = job.generate()->request;
  const auto check = [&](const Session& session) -> absl::Status {
    const auto now = static_cast<uint64_t>(session.position());
    if (request.expected_position.value_or(now) != now) {
      return WithFacts(absl::FailedPreconditionError(
                           absl::StrCat(request.field_prefix, "expected_position: the session has ",
                                        now, " tokens, not ", *request.expected_position)),
                       {.position = now});
    }
    if (job.tokens.empty() && !session.pending) {
      return EmptyPrompt(request.field_prefix);
    }
    const int64_t position = session.position() + job.prompt_tokens;
    if (absl::Status status = CheckPosition(*session.state.layout, position); !status.ok())
      return status;
    return admission_.Charge(job, 0, 0);  // the session holds its own share
  };
  auto claimed = sessions_.Claim(request.session_id, request.tenant, check);
  if (!claimed.ok()) return claimed.status();
  job.session = *std::move(claimed);
  job.sequence = job.session;
  return absl::OkStatus();
}

absl::Status Engine::SubmitScore(ScoreRequest request, std::shared_ptr<CancelSignal> cancel,
                                 ScoreCallback done) {
  if (absl::Status status = ValidateScore(config_, request); !status.ok()) return status;
  if (cancel != nullptr) cancel->SetWake(Wake());
  absl::Status status = admission_.Enqueue(MakeJob(model(), std::move(request), std::move(cancel),
                                                   std::move(done), options().clock.steady()));
  inbox_->Ring();
  return status;
}

void Engine::CreateSession(SessionOptions options, SessionCallback done) {
  absl::Status status = ValidateSession(config_, options);
  if (options.cancel != nullptr) options.cancel->SetWake(Wake());
  inbox_->Post([this, status = std::move(status), options = std::move(options),
                done = std::move(done), called = this->options().clock.steady()]() mutable {
    if (!status.ok()) return done(std::move(status));
    std::shared_ptr<Job> job = sessions_.Open(std::move(options), called, std::move(done));
    if (job != nullptr) runner_.Start(std::move(job));
  });
}

void Engine::ForkSession(ForkOptions options, SessionsCallback done) {
  absl::Status status = ValidateFork(config_, options);
  inbox_->Post([this, status = std::move(status), options = std::move(options),
                done = std::move(done), called = this->options().clock.steady()]() mutable {
    if (!status.ok()) return done(std::move(status));
    WhenAwake(options.session_id, options.tenant, [=, this](absl::Status status) {
      if (!status.ok()) return done(std::move(status));
      sessions_.Fork(options, called, done);
    });
  });
}

void Engine::RewindSession(RewindOptions options, std::shared_ptr<CancelSignal> cancel,
                           RewindCallback done) {
  if (cancel != nullptr) cancel->SetWake(Wake());
  inbox_->Post([this, options = std::move(options), cancel = std::move(cancel),
                done = std::move(done), called = this->options().clock.steady()]() mutable {
    const std::string id = options.session_id, tenant = options.tenant;
    WhenAwake(id, tenant, [=, this](absl::Status status) {
      if (!status.ok()) return done(std::move(status));
      std::shared_ptr<Job> job = sessions_.Rewind(options, cancel, called, done);
      if (job != nullptr) runner_.Start(std::move(job));
    });
  });
}

void Engine::WhenAwake(const std::string& id, const std::string& tenant, SessionStore::Then then) {
  if (absl::Status status = admission_.Enter(); !status.ok()) return then(std::move(status));
  sessions_.WakeIdle(id, tenant, [this, then = std::move(then)](absl::Status status) {
    then(std::move(status));
    admission_.Leave();
  });
}

absl::StatusOr<SessionImage> Engine::ExportSession(const std::string& id, const std::string& tenant,
                                                   const std::optional<SessionBase>& since) {
  using Image = absl::StatusOr<SessionImage>;
  const SteadyTime called = options().clock.steady();
  Image image = inbox_->Await<Image>([&](const std::function<void(Image)>& tell) {
    sessions_.WakeIdle(id, tenant, [=, this, whole = !since](absl::Status status) {
      tell(status.ok() ? sessions_.Export(id, tenant, whole) : Image(std::move(status)));
    });
  });
  // A digest of millions of tokens would hold up a step.
  if (image.ok() && since) {
    if (absl::Status status = CheckGoesOn(id, *image, *since); !status.ok()) return status;
  }
  if (image.ok()) {
    inbox_->Post([this, event = since ? "export_delta" : "export", called,
                  length = image->length()] { sessions_.Tell(event, called, length); });
  }
  return image;
}

absl::Status Engine::CheckImport(const SessionImage& head) const {
  const EngineMemory* memory = model().FindMemory(head.memory);
  if (memory == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session file: no memory of this server is named '", absl::CHexEscape(head.memory), "'"));
  }
  if (head.slot_cap > options().max_slot_cap) {
    return absl::FailedPreconditionError(absl::StrCat("session file: expected at most ",
                                                      options().max_slot_cap,
                                                      " max_centroids, got ", head.slot_cap));
  }
  return CheckSessionFits(head, memory->fingerprint, *memory->layout, model().vocab_size);
}

void Engine::ImportSession(SessionImage image, SessionOptions options, SessionCallback done) {
  options.imported = true;
  options.memory = image.memory;
  if (image.slot_cap > 0) options.slot_cap = image.slot_cap;
  const bool trusted = this->options().trust_session_files;
  absl::Status status = CheckImport(image);
  if (status.ok() && !trusted && !image.tokens) {
    status = absl::FailedPreconditionError(
        "session file: it has no tokens to read again (keep_tokens), and this server takes no "
        "state from outside (--imports replay)");
  }
  if (status.ok() && !trusted) {
    options.prompt = *std::move(image.tokens);
    return CreateSession(std::move(options), std::move(done));
  }
  if (status.ok()) status = ValidateSession(config_, options);
  if (status.ok()) status = CheckSessionState(image, *model().FindMemory(image.memory)->layout);
  inbox_->Post([this, status = std::move(status), image = std::move(image),
                options = std::move(options), done = std::move(done),
                called = this->options().clock.steady()]() mutable {
    if (!status.ok()) return done(std::move(status));
    std::shared_ptr<Job> job = sessions_.Import(std::move(image), options, called, std::move(done));
    if (job != nullptr) runner_.Start(std::move(job));
  });
}

absl::Status Engine::DeleteSession(const std::string& id,
                                   const std::optional<std::string>& tenant) {
  return inbox_->Await<absl::Status>([&](const std::function<void(absl::Status)>& tell) {
    const SteadyTime called = options().clock.steady();
    sessions_.Fetch(id, tenant, [this, id, tenant, called, tell](absl::Status status) {
      if (!status.ok()) return tell(std::move(status));
      sessions_.Delete(id, tenant, called, tell);
    });
  });
}

std::vector<std::string> Engine::AdoptSessions(std::vector<FoundSession> found) {
  return inbox_->Call<std::vector<std::string>>([&] {
    std::vector<std::string> left;
    for (FoundSession& one : found) {
      const absl::Status status = sessions_.Adopt(std::move(one));
      if (!status.ok()) left.emplace_back(status.message());
    }
    return left;
  });
}

absl::StatusOr<SessionInfo> Engine::GetSession(const std::string& id, const std::string& tenant) {
  if (sessions_.MayBeElsewhere(id)) {
    const absl::Status status = inbox_->Await<absl::Status>(
        [&](const std::function<void(absl::Status)>& tell) { sessions_.Fetch(id, tenant, tell); });
    if (!status.ok()) return status;
  }
  return sessions_.Get(id, tenant);
}
absl::StatusOr<SessionPage> Engine::ListSessions(const std::optional<std::string>& tenant,
                                                 int page_size,
                                                 const std::string& page_token) const {
  return sessions_.List(tenant, page_size, page_token);
}

absl::Status Engine::ChargeRequest(const std::string& tenant) const {
  absl::Status status = quotas().ChargeRequest(tenant);
  if (!status.ok()) config_.events.rejected(*FactsOf(status).reason);
  return status;
}

EngineStats Engine::Stats() const {
  std::unique_lock lock(mutex_);
  EngineStats stats = stats_;
  lock.unlock();
  stats.gpu = context_->Gpu();
  stats.request_bytes = options().request_memory->held();
  stats.request_bytes_budget = options().request_memory->total();
  return stats;
}

bool Engine::Drain(absl::Duration timeout) {
  if (admission_.Close(timeout)) return true;
  inbox_->Post([this] { EndAll(absl::UnavailableError("the server is shutting down")); });
  admission_.Close(absl::InfiniteDuration());
  return false;
}

absl::StatusOr<std::vector<std::byte>> Engine::CopyState(const std::string& id,
                                                         const std::string& tenant) {
  using Bytes = absl::StatusOr<std::vector<std::byte>>;
  return inbox_->Await<Bytes>([&](const std::function<void(Bytes)>& tell) {
    sessions_.WakeIdle(id, tenant, [this, id, tenant, tell](absl::Status status) {
      tell(status.ok() ? sessions_.CopyState(id, tenant) : Bytes(std::move(status)));
    });
  });
}

void Engine::Stop() {
  stopping_ = true;
  inbox_->Ring();
}

// --- engine thread ---

void Engine::Run() {
  NameThisThread("engine");
  context_->BindThread();
  while (!stopping_) {
    const bool progressed = Turn();
    // The turn may have taken the ring of Stop, which comes after what it sets.
    if (!progressed && !stopping_) inbox_->Wait(TimeToNextEnd());
  }
  Turn();  // what was posted meanwhile
}

bool Engine::Turn() {
  watch_.Begin(config_.options.clock.steady());
  const bool rung = inbox_->RunAll();
  const SteadyTime now = config_.options.clock.steady();
  if (rung || now >= look_again_) EndWhatIsOver(now);
  while (std::shared_ptr<Job> job = admission_.Next()) {
    if (!job->refused.ok()) {
      runner_.Fail(*job, FinishReason::kError, job->refused);
    } else {
      runner_.Start(std::move(job));
    }
  }
  // A step may take long, or hang: what begins with it shows before it.
  if (runner_.jobs().size() != published_jobs_ && PublishDue()) PublishStats();
  const bool progressed = runner_.RunStep(step_);
  runner_.ForgetEnded();
  if (!progressed) look_again_ = {};  // whenever the next turn is
  if (!progressed || PublishDue()) PublishStats();
  watch_.End();
  return progressed;
}

void Engine::EndWhatIsOver(SteadyTime now) {
  look_again_ = now + (few_jobs() ? kLookEvery : kLookAtManyEvery);
  sessions_.Expire(now);
  runner_.FailDead(now);
  const auto dead = [now](const Job& job) { return !DeathOf(job, now).ok(); };
  for (const std::shared_ptr<Job>& job : admission_.Remove(dead)) runner_.FailIfDead(*job, now);
  for (const std::shared_ptr<Job>& job : admission_.TakePushedOut()) {
    runner_.Fail(*job, FinishReason::kError, admission_.PushedOut());
  }
}

void Engine::EndAll(const absl::Status& status) {
  runner_.FailAll(status);
  for (const std::shared_ptr<Job>& job : admission_.Remove([](const Job&) { return true; })) {
    runner_.Fail(*job, FinishReason::kError, status);
  }
}

absl::Duration Engine::TimeToNextEnd() const {
  SteadyTime next = std::min(sessions_.next_expiry(), admission_.next_deadline());
  for (const std::shared_ptr<Job>& job : runner_.jobs()) {
    if (!job->ended) next = std::min(next, job->deadline);
  }
  if (next == kNever) return absl::InfiniteDuration();
  return std::max(TimeBetween(config_.options.clock.steady(), next), absl::ZeroDuration());
}

void Engine::PublishStats() {
  published_jobs_ = runner_.jobs().size();
  publish_again_ = config_.options.clock.steady() + kPublishManyEvery;
  EngineStats stats;
  admission_.AddTo(stats);
  sessions_.AddTo(stats);
  runner_.AddTo(stats);
  stats.sessions_active = pool_.sessions() - stats.sessions_idle;
  stats.session_slots = session_slots_;
  stats.state_bytes_committed = pool_.committed_bytes();
  stats.state_bytes_reserved = pool_.reserved_bytes();
  stats.state_bytes_budget = pool_.budget_bytes();
  std::lock_guard lock(mutex_);
  stats_ = stats;
}

}  // namespace ovq
