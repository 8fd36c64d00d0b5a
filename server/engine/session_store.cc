#include "server/engine/session_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/engine/error_facts.h"
#include "server/engine/limits.h"
#include "server/engine/validate.h"

namespace ovq {

SessionStore::SessionStore(const EngineConfig& config, StatePool& pool, Admission& admission,
                           RandomSource& random, std::shared_ptr<Inbox> inbox, StartRequest start)
    : config_(config),
      pool_(pool),
      admission_(admission),
      random_(random),
      inbox_(std::move(inbox)),
      start_(std::move(start)),
      checkpoints_(config.options.checkpoint_memory_bytes, pool) {
  if (config.options.session_folder != nullptr) {
    config.options.session_folder->SetTransferListener(
        [this, inbox = inbox_](const std::string& id) { inbox->Post([this, id] { Asked(id); }); });
  }
}

SessionStore::~SessionStore() {
  if (config_.options.session_folder != nullptr)
    config_.options.session_folder->SetTransferListener({});
  for (const auto& [id, session] : by_id_) pool_.Release(session->state);
}

// --- any thread ---

absl::StatusOr<SessionStore::Map::const_iterator> SessionStore::Find(
    const std::string& id, const std::optional<std::string>& tenant) const {
  constexpr size_t kMaxShown = 128;  // bytes
  const auto found = by_id_.find(id);
  if (found != by_id_.end() && (!tenant || found->second->info.tenant == *tenant)) return found;
  // What is no id could be anything, of any length.
  if (id.size() > kMaxShown) {
    return absl::NotFoundError("session_id: not found, and longer than any id");
  }
  const absl::Status status = absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
  if (IsSessionId(id)) return status;
  return WithLogText(status, "session_id: not found, and no session's id");
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::FindIdle(const std::string& id,
                                                                const std::string& tenant) const {
  ASSIGN_OR_RETURN(const Map::const_iterator found, Find(id, tenant));
  const SessionInfo& info = (found)->second->info;
  if (info.damaged_at) {
    return absl::DataLossError(absl::StrCat("session ", id, ": damaged: ", (found)->second->damage,
                                            " at position ", *info.damaged_at, "; delete it"));
  }
  if (!info.busy) return (found)->second;
  return absl::FailedPreconditionError(absl::StrCat("session ", id, ": in use by another call"));
}

absl::StatusOr<SessionInfo> SessionStore::Get(const std::string& id,
                                              const std::optional<std::string>& tenant) const {
  std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const Map::const_iterator found, Find(id, tenant));
  SessionInfo info = (found)->second->info;
  info.turns = Turns(*(found)->second);
  return info;
}

absl::StatusOr<SessionPage> SessionStore::List(const std::optional<std::string>& tenant,
                                               int page_size, const std::string& page_token) const {
  RETURN_IF_ERROR(CheckPageSize(page_size));
  if (page_size == 0) page_size = kDefaultPageSize;
  SessionPage page;
  std::lock_guard lock(mutex_);
  for (auto it = by_id_.upper_bound(page_token); it != by_id_.end(); ++it) {
    const SessionInfo& info = it->second->info;
    if (tenant && info.tenant != *tenant) continue;
    if (static_cast<int>(page.sessions.size()) == page_size) {
      page.next_page_token = page.sessions.back().id;
      break;
    }
    page.sessions.push_back(info);
  }
  return page;
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::Claim(
    const std::string& id, const std::string& tenant,
    const std::function<absl::Status(const Session&)>& check) {
  std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, FindIdle(id, tenant));
  RETURN_IF_ERROR(check(*session));
  SetBusy(*session, true);
  return session;
}

// --- engine thread ---

void SessionStore::SetBusy(Session& session, bool busy) {
  Count(session, -1);
  session.info.busy = busy;
  Count(session, 1);
}

void SessionStore::Count(const Session& session, int sign) {
  if (session.info.hibernated) {
    hibernated_ += sign;
    return;
  }
  idle_ += session.info.busy ? 0 : sign;
  tokens_ += sign * session.info.position;
  live_slots_ += sign * session.info.live_slots;
  log_tokens_ += session.info.keeps_tokens ? sign * session.info.position : 0;
}

void SessionStore::Refresh(Session& session) {
  const StateHandle& state = session.state;
  session.info.position = session.position();
  session.info.last_token = session.pending;
  session.info.durable = session.disk && !session.disk->behind;
  session.info.hibernated = !session.resident();
  session.info.state_bytes = state.committed_bytes;
  session.info.live_slots = state.layout->LiveSlotsAt(state.position, state.slot_cap);
}

void SessionStore::MarkUsed(Session& session) {
  const Clock& clock = config_.options.clock;
  session.info.last_used = clock.wall();
  session.info.expires = session.info.last_used + session.ttl;
  session.expires = After(clock.steady(), session.ttl);
  next_expiry_ = std::min(next_expiry_, session.expires);
}

void SessionStore::Tell(const char* event, SteadyTime since, int64_t position) const {
  config_.events.session_event({.event = event,
                                .duration = TimeBetween(since, config_.options.clock.steady()),
                                .position = position});
}

SessionsCallback SessionStore::ForSingleSession(SessionCallback done) {
  return [done = std::move(done)](absl::StatusOr<std::vector<SessionInfo>> infos) {
    if (!infos.ok()) return done(infos.status());
    done(std::move(infos->front()));
  };
}

std::shared_ptr<Session> SessionStore::NewSession(const StateHandle& state,
                                                  std::unique_ptr<QuotaHold> hold,
                                                  const std::string& tenant, const std::string& key,
                                                  absl::Duration ttl, bool keep_tokens) {
  auto session = std::make_shared<Session>();
  session->state = state;
  session->hold = std::move(hold);
  session->ttl = ttl;
  if (keep_tokens) session->log.emplace();
  if (config_.options.session_folder != nullptr) session->disk.emplace();
  SessionInfo& info = session->info;
  info.id = random_.NextId();
  if (!key.empty()) info.id = absl::StrCat(key, ".", info.id);
  info.tenant = tenant;
  info.keeps_tokens = keep_tokens;
  info.created = config_.options.clock.wall();
  info.memory =
      std::ranges::find(config_.model.variants, state.layout, &ModelVariant::layout)->name;
  info.slot_cap = state.slot_cap;
  info.state_bytes_cap = state.reserved_bytes;
  return session;
}

std::shared_ptr<Request> SessionStore::Open(SessionOptions options, SteadyTime called,
                                            SessionCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) {
    done(std::move(status));
    return nullptr;
  }
  std::shared_ptr<Request> request = NewRequest(config_.model, options, 0, called);
  absl::StatusOr<StateHandle> state =
      admission_.AcquireSession(*request->variant->layout, request->slot_cap, request->client);
  absl::Status status = state.status();
  if (status.ok()) {
    status = admission_.Charge(*request, 1, state->reserved_bytes);
    if (!status.ok()) pool_.Release(*state);
  }
  if (!status.ok()) {
    admission_.Leave();
    done(std::move(status));
    return nullptr;
  }
  request->session =
      NewSession(*state, std::move(request->hold), request->tenant, options.key,
                 options.ttl.value_or(config_.options.session_ttl), options.keep_tokens);
  request->session->client = request->client;
  request->session->info.prompt_tokens_total = request->prompt_tokens;
  request->sequence = request->session;
  OpenWork& work = request->work.emplace<OpenWork>();
  work.done = std::move(done);
  work.cancel = std::move(options.cancel);
  if (options.imported) work.event = "import";
  if (!request->tokens.empty()) return request;
  Opened(*request, [this, done = std::move(work.done)](absl::StatusOr<SessionInfo> info) {
    done(std::move(info));
    admission_.Leave();
  });
  return nullptr;
}

SessionInfo SessionStore::Show(const std::shared_ptr<Session>& session, const char* event,
                               SteadyTime since) {
  std::unique_lock lock(mutex_);
  MarkUsed(*session);
  Refresh(*session);
  Count(*session, 1);
  SessionInfo info = session->info;
  Check(by_id_.emplace(info.id, session).second, "session ids are unique");
  lock.unlock();
  Tell(event, since, info.position);
  return info;
}

void SessionStore::Opened(Request& request, SessionCallback done) {
  const OpenWork& work = *request.open();
  if (work.from_state) {  // the turns' ends came with it
    MayCheckpoint(*request.session, 0);
  } else {
    EndOfTurn(*request.session, 0);
  }
  const bool snapshot = work.from_state && request.session->disk;
  Establish({request.session}, snapshot ? MakeSharedImage(*request.session) : nullptr, work.event,
            request.arrival, ForSingleSession(std::move(done)));
}

void SessionStore::Publish(Request& request) {
  if (request.session->deleted) return;
  std::lock_guard lock(mutex_);
  Count(*request.session, -1);
  Refresh(*request.session);
  Count(*request.session, 1);
}

void SessionStore::SetDamaged(Session& session, int64_t position, std::string_view what) {
  std::lock_guard lock(mutex_);
  session.info.damaged_at = position;
  session.damage = what;
  checkpoints_.Forget(session);
  // So it is neither written there, nor moved out to make room, nor given to another server.
  if (session.disk) session.disk->behind = true;
}

void SessionStore::EndTurn(Request& request, Then then) {
  const std::shared_ptr<Session> session = request.session;
  const GenerateWork& work = *request.generate();
  const int64_t generated = work.answers.empty() ? 0 : work.answers[0]->generated();
  const bool damaged = session->info.damaged_at.has_value();
  if (session->resident() && !session->deleted && !damaged) EndOfTurn(*session, generated);
  std::unique_lock lock(mutex_);
  // A turn that could not begin has read nothing.
  const int64_t read =
      session->resident() ? session->position() - request.cached_tokens - generated : 0;
  session->info.generated_tokens_total += generated;
  session->info.prompt_tokens_total += read;
  lock.unlock();
  Save(session, session->disk ? session->disk->length : 0,
       [this, session, checked = !request.prefilling(),
        then = std::move(then)](absl::Status status) {
         EndUse(*session);
         then(std::move(status));
         // Whether a prompt that ended early has made numbers is not known yet; its tokens are
         // saved.
         if (checked) MaySnapshot(session);
       });
}

void SessionStore::EndUse(Session& session) {
  if (session.deleted) return Release(session);
  std::lock_guard lock(mutex_);
  Free(session);
}

void SessionStore::Free(Session& session) {
  Count(session, -1);
  session.info.busy = false;
  MarkUsed(session);
  Refresh(session);
  Count(session, 1);
}

void SessionStore::Delete(const std::string& id, const std::optional<std::string>& tenant,
                          SteadyTime called, Then then) {
  std::unique_lock lock(mutex_);
  const absl::StatusOr<Map::const_iterator> found = Find(id, tenant);
  if (!found.ok()) return then(found.status());
  const std::shared_ptr<Session> session = (*found)->second;
  Count(*session, -1);
  by_id_.erase(*found);
  lock.unlock();
  const int64_t position = session->position();
  session->deleted = true;
  if (!session->info.busy) Release(*session);
  RemoveFiles(*session, [this, called, position, then = std::move(then)](absl::Status status) {
    Tell("close", called, position);
    then(std::move(status));
  });
}

absl::StatusOr<std::vector<std::byte>> SessionStore::CopyState(const std::string& id,
                                                               const std::string& tenant) {
  std::unique_lock lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> session = FindIdle(id, tenant);
  lock.unlock();  // what a turn claims meanwhile begins on this thread, later
  if (!session.ok()) return session.status();
  return pool_.Snapshot((*session)->state);
}

void SessionStore::Expire(SteadyTime now) {
  std::unique_lock lock(mutex_);
  if (now < next_expiry_) return;
  next_expiry_ = kNever;
  std::vector<std::shared_ptr<Session>> expired;
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    const std::shared_ptr<Session> session = it->second;
    const bool ends = !session->info.busy && session->expires <= now;
    it = ends ? by_id_.erase(it) : std::next(it);
    if (ends) {
      Count(*session, -1);
      expired.push_back(session);
    } else if (!session->info.busy) {
      next_expiry_ = std::min(next_expiry_, session->expires);
    }
  }
  lock.unlock();
  for (const std::shared_ptr<Session>& session : expired) {
    const int64_t position = session->position();
    Release(*session);
    RemoveFiles(*session, [](const absl::Status&) {});  // else the next start ends it
    config_.events.session_event({.event = "expire", .duration = {}, .position = position});
  }
}

SteadyTime SessionStore::next_expiry() const {
  std::lock_guard lock(mutex_);
  return next_expiry_;
}

void SessionStore::Release(Session& session) {
  if (!session.resident() && session.state.layout != nullptr) admission_.CountStored(-1);
  pool_.Release(session.state);
  session.state.layout = nullptr;
  session.hold.reset();
  std::lock_guard lock(mutex_);
  checkpoints_.Forget(session);
}

void SessionStore::AddTo(EngineStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.sessions_idle += idle_;
  stats.sessions_hibernated += hibernated_ - placed_;
  stats.live_slots += live_slots_;
  stats.checkpoint_bytes = checkpoints_.bytes();
  stats.token_log_bytes = static_cast<size_t>(log_tokens_) * sizeof(int32_t);
  stats.equivalent_kv_cache_bytes +=
      static_cast<size_t>(tokens_) * config_.model.full_kv_bytes_per_token;
}

}  // namespace ovq
