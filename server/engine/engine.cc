#include "server/engine/engine.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "kernels/common/team.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"

namespace ovq::engine {
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
  Check(options.max_batch_tokens > 0, "a batch has room for a token");
  if (options.quotas == nullptr) options.quotas = std::make_shared<TenantQuotas>(options.clock);
  if (options.host_time == nullptr) options.host_time = std::make_shared<HostTime>();
  if (options.request_memory == nullptr) {
    options.request_memory = std::make_shared<ByteBudget>(size_t{1} << 30);
  }
  return config;
}

}  // namespace

Engine::Engine(EngineConfig config, std::unique_ptr<kernels::DeviceContext> context)
    : config_(Completed(std::move(config))),
      context_(std::move(context)),
      pool_(config_.options.state_memory_bytes, *context_),
      random_(config_.options.seed),
      admission_(config_, pool_),
      parts_{{config_, pool_, admission_, random_, inbox_,
              [this](std::shared_ptr<Request> request) { scheduler_.Start(std::move(request)); }}},
      scheduler_(parts_, watch_),
      executor_(config_, *context_, pool_),
      session_slots_(SessionSlots(
          *config_.model.variants.front().layout, config_.model.variants.front().default_slot_cap,
          config_.options.state_memory_bytes, config_.options.max_sessions)) {
  admission_.SetEvictor({.evict_idle_states =
                             [this](size_t bytes) {
                               return config_.options.overcommit &&
                                      parts_.removal.EvictIdleStates(bytes);
                             },
                         .evict_from =
                             [this](const std::string& client, bool table, bool running) {
                               return parts_.removal.EvictFrom(client, table) ||
                                      (running && scheduler_.EvictFrom(client));
                             }});
  PublishStats();
}

// --- any thread ---

absl::Status Engine::Submit(GenerateRequest call, std::shared_ptr<TokenStream> stream) {
  RETURN_IF_ERROR(ValidateGenerate(config_, call));
  stream->cancel_signal().SetWake(inbox_->waker());
  const bool turn = !call.session_id.empty();
  auto request = MakeRequest(model(), std::move(call), std::move(stream), options().clock.steady());
  if (turn) return SubmitTurn(std::move(request));
  absl::Status status = admission_.Enqueue(std::move(request));
  inbox_->Ring();
  return status;
}

absl::Status Engine::SubmitTurn(std::shared_ptr<Request> request) {
  RETURN_IF_ERROR(admission_.Enter());
  absl::Status status = PinTurn(request);
  if (!status.ok()) admission_.Leave();
  return status;
}

absl::Status Engine::PinTurn(const std::shared_ptr<Request>& request) {
  const GenerateRequest& call = request->generate()->call;
  return parts_.pins.PinForTurn(
      call.session_id, call.tenant,
      [this, request](Session& session) { return BeginTurn(*request, session); },
      [this, request](SessionPins::Pinned pin) {
        if (!pin.ok()) return scheduler_.Fail(*request, FinishReason::kError, pin.status());
        if (request->generate()->call.rewrites) return GoBack(request, *std::move(pin));
        request->session = (*pin)->Detach();
        request->sequence = request->session;
        scheduler_.StartTurn(request);
      });
}

void Engine::GoBack(const std::shared_ptr<Request>& request, std::shared_ptr<PinnedSession> pin) {
  GenerateRequest& call = request->generate()->call;
  std::vector<int32_t>& tokens = request->tokens;
  std::span<const int32_t> own;  // without a log the rewinder says what is wrong
  if ((*pin)->log) own = *(*pin)->log;
  const auto common = std::ranges::mismatch(tokens, own).in1;
  const auto position = static_cast<uint64_t>(common - tokens.begin());
  const auto pinned_again = [this, request](const absl::StatusOr<RewindResult>& back) {
    const absl::Status status = back.ok() ? PinTurn(request) : back.status();
    if (!status.ok()) scheduler_.Fail(*request, FinishReason::kError, status);
  };
  tokens.erase(tokens.begin(), common);
  request->prompt_tokens = std::ssize(tokens);
  call.rewrites = false;
  call.expected_position = position;  // no other call has come between
  parts_.rewinder.Rewind(std::move(pin),
                         {.session_id = call.session_id,
                          .tenant = call.tenant,
                          .client = call.client,
                          .position = position,
                          .deadline = call.deadline},
                         request->cancel, request->arrival, pinned_again);
}

absl::Status Engine::BeginTurn(Request& request, Session& session) {
  const GenerateRequest& call = request.generate()->call;
  const auto now = static_cast<uint64_t>(session.position());
  if (call.expected_position.value_or(now) != now) {
    return WithFacts(absl::FailedPreconditionError(
                         absl::StrCat(call.field_prefix, "expected_position: the session has ", now,
                                      " tokens, not ", *call.expected_position)),
                     {.position = now});
  }
  if (call.rewrites) return absl::OkStatus();  // it is checked when the session has gone back
  if (request.tokens.empty() && !session.pending) return EmptyPrompt(call.field_prefix);
  const int64_t position = session.position() + request.prompt_tokens;
  RETURN_IF_ERROR(CheckPosition(*session.state.layout, position));
  RETURN_IF_ERROR(admission_.Charge(request, 0, 0));  // the session holds its own share
  session.client = request.client;
  return absl::OkStatus();
}

absl::Status Engine::SubmitScore(ScoreRequest call, std::shared_ptr<CancelSignal> cancel,
                                 ScoreCallback done) {
  RETURN_IF_ERROR(ValidateScore(config_, call));
  if (cancel != nullptr) cancel->SetWake(inbox_->waker());
  absl::Status status = admission_.Enqueue(MakeRequest(model(), std::move(call), std::move(cancel),
                                                       std::move(done), options().clock.steady()));
  inbox_->Ring();
  return status;
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
  stats.host = options().host_time->stats();
  stats.request_bytes = options().request_memory->held();
  stats.request_bytes_budget = options().request_memory->total();
  stats.request_refusals = options().request_memory->refusals();
  return stats;
}

bool Engine::Drain(absl::Duration timeout) {
  if (admission_.Close(timeout)) return true;
  inbox_->Post([this] { EndAll(absl::UnavailableError("the server is shutting down")); });
  admission_.Close(absl::InfiniteDuration());
  return false;
}

void Engine::Stop() {
  stopping_ = true;
  inbox_->Ring();
}

// --- engine thread ---

void Engine::Run(const std::function<void()>& begun) {
  NameThisThread("engine");
  context_->BindThread();
  scheduler_.Calibrate(executor_);
  for (const int thread : kernels::TeamThreads(*context_)) {
    if (processor_waits_.size() < kMostWaits) processor_waits_.emplace_back(thread);
  }
  begun();
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
  SettleHostTime(now);
  const bool progressed = scheduler_.RunIteration(executor_);
  scheduler_.RemoveEnded();
  if (!progressed) {
    look_again_ = {};  // in the next iteration
    options().host_time->Forgive();
  }
  if (!progressed || PublishDue()) PublishStats();
  watch_.End();
  return progressed;
}

void Engine::SettleHostTime(SteadyTime now) {
  if (now < settle_again_ || processor_waits_.empty()) return;
  settle_again_ = now + kSettleEvery;
  // A batch waits for the last of its threads.
  std::optional<absl::Duration> longest;
  for (ProcessorWait& wait : processor_waits_) {
    const std::optional<absl::Duration> waited = wait.Since();
    if (waited) longest = std::max(longest.value_or(absl::ZeroDuration()), *waited);
  }
  options().host_time->Settle(longest);
}

void Engine::EndWhatIsOver(SteadyTime now) {
  look_again_ = now + (few_requests() ? kLookEvery : kLookAtManyEvery);
  parts_.removal.Expire(now);
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
  SteadyTime next = std::min(parts_.table.next_expiry(), admission_.next_deadline());
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
  parts_.table.AddTo(stats);
  parts_.swap_in.AddTo(stats);
  scheduler_.AddTo(stats);
  stats.sessions_active = pool_.sessions() - stats.sessions_idle;
  stats.session_slots = session_slots_;
  stats.state_bytes_committed = pool_.committed_bytes();
  stats.state_bytes_reserved = pool_.reserved_bytes();
  stats.state_bytes_budget = pool_.budget_bytes();
  std::lock_guard lock(mutex_);
  stats_ = stats;
}

}  // namespace ovq::engine
