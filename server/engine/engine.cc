#include "server/engine/engine.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"

namespace ovq {
namespace {

EngineConfig Completed(EngineConfig config) {
  const EngineModel& model = config.model;
  EngineOptions& options = config.options;
  Check(!model.variants.empty(), "the engine has a model");
  for (const ModelVariant& variant : model.variants) {
    // The layout reserves address space for at most this slot cap.
    const int64_t limit = variant.layout->limits().max_slot_cap;
    Check(variant.default_slot_cap <= limit, "the model's own cap fits the layout");
    options.max_slot_cap = static_cast<int32_t>(std::min<int64_t>(options.max_slot_cap, limit));
  }
  Check(options.max_batch_tokens > 0, "a step has room for a row");
  if (options.quotas == nullptr) options.quotas = std::make_shared<TenantQuotas>(options.clock);
  if (options.request_memory == nullptr) {
    options.request_memory = std::make_shared<ByteBudget>(size_t{1} << 30);
  }
  return config;
}

// Checks that a session begins with the tokens of an earlier export.
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
  if (MakeSessionBase(std::span(*session.tokens).first(length)).digest == since.digest) return {};
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
                [this](std::shared_ptr<Request> request) { scheduler_.Start(std::move(request)); }),
      scheduler_(config_, pool_, admission_, sessions_.turns, random_, watch_),
      executor_(config_, *context_, pool_),
      session_slots_(SessionSlots(
          *config_.model.variants.front().layout, config_.model.variants.front().default_slot_cap,
          config_.options.state_memory_bytes, config_.options.max_sessions)) {
  admission_.SetEvictor(this);
  PublishStats();
}

// --- any thread ---

absl::Status Engine::Submit(GenerateRequest call, std::shared_ptr<TokenStream> stream) {
  RETURN_IF_ERROR(ValidateGenerate(config_, call));
  stream->cancel_signal().SetWake(Wake());
  const bool turn = !call.session_id.empty();
  auto request = MakeRequest(model(), std::move(call), std::move(stream), options().clock.steady());
  if (turn) return SubmitTurn(std::move(request));
  absl::Status status = admission_.Enqueue(std::move(request));
  inbox_->Ring();
  return status;
}

absl::Status Engine::SubmitTurn(std::shared_ptr<Request> request) {
  RETURN_IF_ERROR(admission_.Enter());
  const GenerateRequest& call = request->generate()->call;
  if (SessionMayBeElsewhere(call.session_id)) {
    inbox_->Post([this, request = std::move(request), id = call.session_id, tenant = call.tenant] {
      sessions_.ownership.Acquire(id, tenant, [this, request](absl::Status status) {
        if (status.ok()) status = Claim(*request);
        if (!status.ok()) return scheduler_.Fail(*request, FinishReason::kError, std::move(status));
        StartTurn(request);
      });
    });
    return absl::OkStatus();
  }
  if (absl::Status status = Claim(*request); !status.ok()) {
    admission_.Leave();
    return status;
  }
  inbox_->Post([this, request = std::move(request)] { StartTurn(request); });
  return absl::OkStatus();
}

void Engine::StartTurn(std::shared_ptr<Request> request) {
  const std::shared_ptr<Session> session = request->session;
  session->client = request->client;
  sessions_.swap_in.SwapIn(session, [this, request = std::move(request)](absl::Status status) {
    if (status.ok()) return scheduler_.StartTurn(request);
    scheduler_.Fail(*request, FinishReason::kError, std::move(status));
  });
}

absl::Status Engine::Claim(Request& request) {
  const GenerateRequest& call = request.generate()->call;
  const auto check = [&](const Session& session) -> absl::Status {
    const auto now = static_cast<uint64_t>(session.position());
    if (call.expected_position.value_or(now) != now) {
      return WithFacts(absl::FailedPreconditionError(
                           absl::StrCat(call.field_prefix, "expected_position: the session has ",
                                        now, " tokens, not ", *call.expected_position)),
                       {.position = now});
    }
    if (request.tokens.empty() && !session.pending) {
      return EmptyPrompt(call.field_prefix);
    }
    const int64_t position = session.position() + request.prompt_tokens;
    RETURN_IF_ERROR(CheckPosition(*session.state.layout, position));
    return admission_.Charge(request, 0, 0);  // the session holds its own share
  };
  ASSIGN_OR_RETURN(request.session, sessions_.table.Claim(call.session_id, call.tenant, check));
  request.sequence = request.session;
  return absl::OkStatus();
}

absl::Status Engine::SubmitScore(ScoreRequest call, std::shared_ptr<CancelSignal> cancel,
                                 ScoreCallback done) {
  RETURN_IF_ERROR(ValidateScore(config_, call));
  if (cancel != nullptr) cancel->SetWake(Wake());
  absl::Status status = admission_.Enqueue(MakeRequest(model(), std::move(call), std::move(cancel),
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
    sessions_.creator.Create(std::move(options), called, std::move(done));
  });
}

void Engine::ForkSession(ForkOptions options, SessionsCallback done) {
  absl::Status status = ValidateFork(config_, options);
  inbox_->Post([this, status = std::move(status), options = std::move(options),
                done = std::move(done), called = this->options().clock.steady()]() mutable {
    if (!status.ok()) return done(std::move(status));
    if (absl::Status entered = admission_.Enter(); !entered.ok()) return done(std::move(entered));
    const auto leave = [this, done](absl::StatusOr<std::vector<SessionInfo>> infos) {
      done(std::move(infos));
      admission_.Leave();
    };
    sessions_.pins.Pin(options.session_id, options.tenant, [=, this](auto pin) {
      if (!pin.ok()) return leave(pin.status());
      sessions_.forks.Fork(*std::move(pin), options, called, leave);
    });
  });
}

void Engine::RewindSession(RewindOptions options, std::shared_ptr<CancelSignal> cancel,
                           RewindCallback done) {
  if (cancel != nullptr) cancel->SetWake(Wake());
  inbox_->Post([this, options = std::move(options), cancel = std::move(cancel),
                done = std::move(done), called = this->options().clock.steady()]() mutable {
    if (absl::Status status = admission_.Enter(); !status.ok()) return done(std::move(status));
    sessions_.pins.Pin(options.session_id, options.tenant, [=, this](auto pin) {
      if (pin.ok()) {
        sessions_.rewinder.Rewind(*std::move(pin), options, cancel, called, done);
      } else {
        done(pin.status());
      }
      admission_.Leave();
    });
  });
}

absl::StatusOr<SessionImage> Engine::ExportSession(const std::string& id, const std::string& tenant,
                                                   const std::optional<SessionBase>& since) {
  using Image = absl::StatusOr<SessionImage>;
  const SteadyTime called = options().clock.steady();
  Image image = inbox_->Await<Image>([&](const std::function<void(Image)>& tell) {
    sessions_.pins.Pin(id, tenant, [=, this, whole = !since](auto pin) {
      if (!pin.ok()) return tell(pin.status());
      // A turn that claims the session from now on starts later, on this thread.
      const std::shared_ptr<Session> session = (*pin)->Release();
      tell(whole ? std::move(*sessions_.disk.MakeImage(*session))
                 : sessions_.disk.MakeImageHead(*session));
    });
  });
  // On the caller's thread: a digest of millions of tokens would delay an iteration.
  if (image.ok() && since) {
    RETURN_IF_ERROR(CheckGoesOn(id, *image, *since));
  }
  if (image.ok()) {
    inbox_->Post(
        [this, event = since ? "export_delta" : "export", called, length = image->length()] {
          sessions_.turns.ReportEvent(event, called, length);
        });
  }
  return image;
}

absl::Status Engine::CheckImport(const SessionImage& head) const {
  const ModelVariant* variant = model().FindVariant(head.memory);
  if (variant == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session file: no memory of this server is named '", absl::CHexEscape(head.memory), "'"));
  }
  if (head.slot_cap > options().max_slot_cap) {
    return absl::FailedPreconditionError(absl::StrCat("session file: expected at most ",
                                                      options().max_slot_cap,
                                                      " max_centroids, got ", head.slot_cap));
  }
  return CheckSessionFits(head, variant->fingerprint, *variant->layout, model().vocab_size);
}

void Engine::ImportSession(SessionImage image, SessionOptions options, SessionCallback done) {
  options.imported = true;
  options.variant = image.memory;
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
  if (status.ok()) status = CheckSessionState(image, *model().FindVariant(image.memory)->layout);
  inbox_->Post([this, status = std::move(status), image = std::move(image),
                options = std::move(options), done = std::move(done),
                called = this->options().clock.steady()]() mutable {
    if (!status.ok()) return done(std::move(status));
    sessions_.importer.Import(std::move(image), options, called, std::move(done));
  });
}

absl::Status Engine::DeleteSession(const std::string& id,
                                   const std::optional<std::string>& tenant) {
  return inbox_->Await<absl::Status>([&](const std::function<void(absl::Status)>& tell) {
    const SteadyTime called = options().clock.steady();
    sessions_.ownership.Acquire(id, tenant, [this, id, tenant, called, tell](absl::Status status) {
      if (!status.ok()) return tell(std::move(status));
      sessions_.removal.Delete(id, tenant, called, tell);
    });
  });
}

std::vector<std::string> Engine::AdoptSessions(std::vector<FoundSession> found) {
  return inbox_->Call<std::vector<std::string>>([&] {
    std::vector<std::string> left;
    for (FoundSession& one : found) {
      const absl::Status status = sessions_.ownership.Register(std::move(one));
      if (!status.ok()) left.emplace_back(status.message());
    }
    return left;
  });
}

absl::StatusOr<SessionInfo> Engine::GetSession(const std::string& id, const std::string& tenant) {
  if (SessionMayBeElsewhere(id)) {
    const absl::Status status =
        inbox_->Await<absl::Status>([&](const std::function<void(absl::Status)>& tell) {
          sessions_.ownership.Acquire(id, tenant, tell);
        });
    if (!status.ok()) return status;
  }
  return sessions_.table.Get(id, tenant);
}
absl::StatusOr<SessionPage> Engine::ListSessions(const std::optional<std::string>& tenant,
                                                 int page_size,
                                                 const std::string& page_token) const {
  return sessions_.table.List(tenant, page_size, page_token);
}

absl::Status Engine::ChargeRequest(const std::string& tenant) const {
  absl::Status status = quotas().ChargeRequest(tenant);
  if (!status.ok()) config_.events.rejected(*GetErrorFacts(status).reason);
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
    sessions_.pins.Pin(id, tenant, [this, tell](auto pin) {
      if (!pin.ok()) return tell(pin.status());
      const absl::StatusOr<StateSnapshot> state = pool_.Snapshot((*pin)->Release()->state);
      if (!state.ok()) return tell(state.status());
      tell(std::vector(state->span().begin(), state->span().end()));
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
    const bool progressed = RunIteration();
    // RunIteration may have consumed the ring of Stop; stopping_ was set before that ring.
    if (!progressed && !stopping_) inbox_->Wait(TimeToNextEnd());
  }
  RunIteration();  // for commands posted meanwhile
}

bool Engine::RunIteration() {
  watch_.Begin(config_.options.clock.steady());
  const bool rung = inbox_->RunAll();
  const SteadyTime now = config_.options.clock.steady();
  if (rung || now >= look_again_) EndWhatIsOver(now);
  while (std::shared_ptr<Request> request = admission_.Next()) {
    if (!request->refused.ok()) {
      scheduler_.Fail(*request, FinishReason::kError, request->refused);
    } else {
      scheduler_.Start(std::move(request));
    }
  }
  // A batch may take long, or hang: statistics show its new requests before it runs.
  if (scheduler_.requests().size() != published_requests_ && PublishDue()) PublishStats();
  const bool progressed = scheduler_.RunIteration(executor_);
  scheduler_.RemoveEnded();
  if (!progressed) look_again_ = {};  // in the next iteration
  if (!progressed || PublishDue()) PublishStats();
  watch_.End();
  return progressed;
}

void Engine::EndWhatIsOver(SteadyTime now) {
  look_again_ = now + (few_requests() ? kLookEvery : kLookAtManyEvery);
  sessions_.removal.Expire(now);
  scheduler_.FailDead(now);
  const auto dead = [now](const Request& request) { return !CheckAlive(request, now).ok(); };
  for (const std::shared_ptr<Request>& request : admission_.Remove(dead))
    scheduler_.FailIfDead(*request, now);
  for (const std::shared_ptr<Request>& request : admission_.DequeuePushedOut()) {
    scheduler_.Fail(*request, FinishReason::kError, admission_.PushedOut());
  }
}

void Engine::EndAll(const absl::Status& status) {
  scheduler_.FailAll(status);
  for (const std::shared_ptr<Request>& request :
       admission_.Remove([](const Request&) { return true; })) {
    scheduler_.Fail(*request, FinishReason::kError, status);
  }
}

absl::Duration Engine::TimeToNextEnd() const {
  SteadyTime next = std::min(sessions_.table.next_expiry(), admission_.next_deadline());
  for (const std::shared_ptr<Request>& request : scheduler_.requests()) {
    if (!request->ended) next = std::min(next, request->deadline);
  }
  if (next == kNever) return absl::InfiniteDuration();
  return std::max(TimeBetween(config_.options.clock.steady(), next), absl::ZeroDuration());
}

void Engine::PublishStats() {
  published_requests_ = scheduler_.requests().size();
  publish_again_ = config_.options.clock.steady() + kPublishManyEvery;
  EngineStats stats;
  admission_.AddTo(stats);
  sessions_.table.AddTo(stats);
  sessions_.swap_in.AddTo(stats);
  scheduler_.AddTo(stats);
  stats.sessions_active = pool_.sessions() - stats.sessions_idle;
  stats.session_slots = session_slots_;
  stats.state_bytes_committed = pool_.committed_bytes();
  stats.state_bytes_reserved = pool_.reserved_bytes();
  stats.state_bytes_budget = pool_.budget_bytes();
  std::lock_guard lock(mutex_);
  stats_ = stats;
}

}  // namespace ovq
