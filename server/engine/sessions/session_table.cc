#include "server/engine/sessions/session_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"
#include "server/engine/common/validate.h"

namespace ovq::engine {

namespace {

constexpr size_t kTextsPart = 16;  // share 1/16 of the request memory is for texts of sessions

}  // namespace

SessionTable::SessionTable(const EngineConfig& config, StatePool& pool, Admission& admission)
    : config_(config),
      pool_(pool),
      admission_(admission),
      checkpoints_(config.options.checkpoint_memory_bytes, pool),
      texts_(config.options.request_memory->total() / kTextsPart,
             config.options.session_store.get()) {}

SessionTable::~SessionTable() {
  for (const auto& [id, session] : by_id_) pool_.Release(session->state);
}

// --- any thread ---

absl::StatusOr<std::shared_ptr<Session>> SessionTable::FindLocked(
    const std::string& id, const std::optional<std::string>& tenant) const {
  constexpr size_t kMaxShown = 128;  // bytes
  const auto found = by_id_.find(id);
  if (found != by_id_.end() && (!tenant || found->second->info.tenant == *tenant)) {
    return found->second;
  }
  // A text that is no id may hold anything, at any length.
  if (id.size() > kMaxShown) {
    return absl::NotFoundError("session_id: not found, and longer than any id");
  }
  const absl::Status status = absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
  if (IsSessionId(id)) return status;
  return WithLogText(status, "session_id: not found, and no session's id");
}

absl::StatusOr<SessionInfo> SessionTable::Get(const std::string& id,
                                              const std::optional<std::string>& tenant) const {
  std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindLocked(id, tenant));
  SessionInfo info = session->info;
  for (const int64_t end : session->turn_ends) {
    info.turns.push_back({end, checkpoints_.ReplayTokens(*session, end)});
  }
  return info;
}

SessionInfo SessionTable::Info(const Session& session) const {
  std::lock_guard lock(mutex_);
  return session.info;
}

absl::StatusOr<SessionPage> SessionTable::List(const std::optional<std::string>& tenant,
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

bool SessionTable::Contains(const std::string& id) const {
  std::lock_guard lock(mutex_);
  return by_id_.contains(id);
}

absl::StatusOr<std::shared_ptr<Session>> SessionTable::Claim(const std::string& id,
                                                             const std::string& tenant,
                                                             const ClaimCheck& check) {
  std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(std::shared_ptr<Session> session, FindLocked(id, tenant));
  const SessionInfo& info = session->info;
  if (info.damaged_at) {
    return absl::DataLossError(absl::StrCat("session ", id, ": damaged: ", session->damage,
                                            " at position ", *info.damaged_at, "; delete it"));
  }
  if (info.busy) {
    return absl::FailedPreconditionError(absl::StrCat("session ", id, ": in use by another call"));
  }
  if (check != nullptr) {
    RETURN_IF_ERROR(check(*session));
  }
  Count(*session, -1);
  session->info.busy = true;
  Count(*session, 1);
  return session;
}

SteadyTime SessionTable::next_expiry() const {
  std::lock_guard lock(mutex_);
  return next_expiry_;
}

void SessionTable::AddTo(EngineStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.sessions_idle += idle_;
  stats.sessions_hibernated += hibernated_;
  stats.live_slots += live_slots_;
  stats.checkpoint_bytes = checkpoints_.bytes();
  stats.token_log_bytes = static_cast<size_t>(log_tokens_) * sizeof(int32_t);
  stats.equivalent_kv_cache_bytes +=
      static_cast<size_t>(tokens_) * config_.model.full_kv_bytes_per_token;
}

// --- engine thread ---

absl::StatusOr<std::shared_ptr<Session>> SessionTable::Find(
    const std::string& id, const std::optional<std::string>& tenant) const {
  std::lock_guard lock(mutex_);
  return FindLocked(id, tenant);
}

std::shared_ptr<Session> SessionTable::FindLeastRecent(
    const std::function<bool(const Session&)>& which) const {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Session> found;
  for (const auto& [id, session] : by_id_) {
    if (session->info.busy || !which(*session)) continue;
    if (found == nullptr || session->info.last_used < found->info.last_used) found = session;
  }
  return found;
}

void SessionTable::Count(const Session& session, int sign) {
  if (session.info.hibernated) {
    hibernated_ += sign;
    return;
  }
  idle_ += session.info.busy ? 0 : sign;
  tokens_ += sign * session.info.position;
  live_slots_ += sign * session.info.live_slots;
  log_tokens_ += session.info.keeps_tokens ? sign * session.info.position : 0;
}

void SessionTable::RefreshInfo(Session& session) {
  const StateHandle& state = session.state;
  session.info.position = session.position();
  session.info.last_token = session.pending;
  session.info.durable =
      session.disk && !session.disk->behind && session.disk->length == session.position();
  session.info.hibernated = !session.resident();
  session.info.state_bytes = state.committed_bytes;
  session.info.live_slots = state.layout->LiveSlotsAt(state.position, state.slot_cap);
}

void SessionTable::MarkUsed(Session& session) {
  const Clock& clock = config_.options.clock;
  session.info.last_used = clock.wall();
  session.info.expires = session.info.last_used + session.ttl;
  session.expires = After(clock.steady(), session.ttl);
  next_expiry_ = std::min(next_expiry_, session.expires);
}

SessionInfo SessionTable::Insert(const std::shared_ptr<Session>& session, bool used) {
  std::lock_guard lock(mutex_);
  if (used) MarkUsed(*session);
  next_expiry_ = std::min(next_expiry_, session->expires);
  RefreshInfo(*session);
  Count(*session, 1);
  Check(by_id_.emplace(session->info.id, session).second, "session ids are unique");
  return session->info;
}

bool SessionTable::Remove(Session& session, bool only_idle) {
  std::lock_guard lock(mutex_);
  if (only_idle && session.info.busy) return false;
  Count(session, -1);
  session.deleted = true;
  by_id_.erase(session.info.id);
  texts_.Forget(session.info.id);
  return true;
}

void SessionTable::Update(Session& session, const std::function<void()>& change) {
  std::lock_guard lock(mutex_);
  Count(session, -1);
  change();
  RefreshInfo(session);
  Count(session, 1);
}

void SessionTable::EndClaim(Session& session, bool used) {
  if (session.deleted) return Release(session);
  std::lock_guard lock(mutex_);
  Count(session, -1);
  session.info.busy = false;
  if (used) MarkUsed(session);
  next_expiry_ = std::min(next_expiry_, session.expires);  // RemoveExpired passes busy ones over
  RefreshInfo(session);
  Count(session, 1);
}

std::vector<std::shared_ptr<Session>> SessionTable::RemoveExpired(SteadyTime now) {
  std::vector<std::shared_ptr<Session>> expired;
  std::lock_guard lock(mutex_);
  if (now < next_expiry_) return expired;
  next_expiry_ = kNever;
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    const std::shared_ptr<Session> session = it->second;
    const bool ends = !session->info.busy && session->expires <= now;
    it = ends ? by_id_.erase(it) : std::next(it);
    if (ends) {
      Count(*session, -1);
      session->deleted = true;
      texts_.Forget(session->info.id);
      expired.push_back(session);
    } else if (!session->info.busy) {
      next_expiry_ = std::min(next_expiry_, session->expires);
    }
  }
  return expired;
}

void SessionTable::Release(Session& session) {
  if (!session.resident() && session.state.layout != nullptr) admission_.CountStored(-1);
  pool_.Release(session.state);
  session.state.layout = nullptr;
  session.hold.reset();
  std::lock_guard lock(mutex_);
  checkpoints_.Forget(session);
}

void SessionTable::ReportEvent(const char* event, int64_t position, std::optional<SteadyTime> since,
                               int64_t replayed) const {
  const SteadyTime now = config_.options.clock.steady();
  config_.events.session_event({.event = event,
                                .duration = TimeBetween(since.value_or(now), now),
                                .position = position,
                                .replayed = replayed});
}

}  // namespace ovq::engine
