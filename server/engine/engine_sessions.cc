// Sessions that outlive a request.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/engine/engine_loop.h"
#include "server/engine/limits.h"
#include "server/engine/validate.h"

namespace ovq {

void Engine::Loop::SessionEvent(const SessionReport& report) const {
  if (events_.session_event) events_.session_event(report);
}

void Engine::Loop::OpenSession(SessionOptions options, absl::Time called, SessionCallback done) {
  std::unique_lock lock(mutex_);
  if (draining_) {
    lock.unlock();
    done(Refuse(RejectReason::kDraining, absl::UnavailableError("the server is draining")));
    return;
  }
  lock.unlock();
  if (live_states() >= options_.max_sessions) {
    done(Refuse(RejectReason::kSessionLimit,
                absl::ResourceExhaustedError(absl::StrCat("sessions: all ", options_.max_sessions,
                                                          " of the server are in use"))));
    return;
  }
  const int32_t cap = options.slot_cap.value_or(model_.default_slot_cap);
  absl::StatusOr<StateHandle> state = pool_.Acquire(cap, layout_.bytes_cap(cap));
  if (!state.ok()) {
    done(Refuse(RejectReason::kStateMemory, state.status()));
    return;
  }
  auto job = std::make_shared<Job>();
  job->tenant = options.tenant;
  job->prompt_tokens = static_cast<int64_t>(options.prompt.size());
  if (std::optional<TenantQuotas::Refusal> over = ChargeTenant(*job, 1, layout_.bytes_cap(cap))) {
    pool_.Release(*state);
    done(Refuse(over->reason, over->status));
    return;
  }
  auto session = std::make_shared<Session>();
  session->id = random_.NextId();
  if (!options.key.empty()) session->id = absl::StrCat(options.key, ".", session->id);
  session->tenant = std::move(options.tenant);
  session->state = *state;
  session->hold = std::move(job->hold);
  session->ttl = options.ttl.value_or(options_.session_ttl);
  session->created = session->last_used = called;
  if (options.prompt.empty()) {
    const SessionInfo info = DescribeSession(*session, layout_);
    PublishSession(std::move(session));
    done(info);
    return;
  }
  job->arrival = session->created;
  job->deadline = options.deadline;
  job->rows = std::move(options.prompt);
  job->session = std::move(session);
  job->work = AbsorbWork{std::move(done)};
  lock.lock();
  ++unfinished_;
  lock.unlock();
  Start(std::move(job));
}

void Engine::Loop::PublishSession(std::shared_ptr<Session> opened) {
  next_expiry_ = std::min(next_expiry_, opened->expires());
  {
    std::lock_guard lock(mutex_);
    sessions_.Insert(opened);
  }
  SessionEvent(
      {.event = "open", .duration = absl::Now() - opened->created, .position = opened->position()});
}

absl::StatusOr<SessionInfo> Engine::Loop::GetSession(const std::string& id,
                                                     const std::string& tenant) {
  std::lock_guard lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> found = sessions_.Find(id, tenant);
  if (!found.ok()) return found.status();
  return DescribeSession(**found, layout_);
}

absl::StatusOr<Engine::SessionPage> Engine::Loop::ListSessions(
    const std::optional<std::string>& tenant, int page_size, const std::string& page_token) {
  if (absl::Status status = CheckPageSize(page_size); !status.ok()) return status;
  if (page_size == 0) page_size = kDefaultPageSize;
  std::lock_guard lock(mutex_);
  SessionPage page;
  for (const std::shared_ptr<Session>& session : sessions_.Page(tenant, page_size, page_token)) {
    if (static_cast<int>(page.sessions.size()) == page_size) {
      page.next_page_token = page.sessions.back().id;
      break;
    }
    page.sessions.push_back(DescribeSession(*session, layout_));
  }
  return page;
}

void Engine::Loop::ReleaseSession(Session& session) {
  pool_.Release(session.state);
  session.hold.Release();
}

absl::Status Engine::Loop::DeleteSession(const std::string& id,
                                         const std::optional<std::string>& tenant,
                                         absl::Time called) {
  std::shared_ptr<Session> session;
  bool busy;
  {
    std::lock_guard lock(mutex_);
    absl::StatusOr<std::shared_ptr<Session>> found = sessions_.Find(id, tenant);
    if (!found.ok()) return found.status();
    session = *std::move(found);
    sessions_.Erase(id);
    session->deleted = true;
    busy = session->busy;
  }
  const int64_t position = session->position();
  if (!busy) {
    ReleaseSession(*session);
  } else {
    // If its job is not running yet, StartOnSession will see `deleted`.
    for (const std::shared_ptr<Job>& job : running_) {
      if (job->session != session || job->ended) continue;
      Fail(*job, FinishReason::kCancelled, absl::CancelledError("the session was deleted"));
    }
  }
  SessionEvent({.event = "close", .duration = absl::Now() - called, .position = position});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::byte>> Engine::Loop::CopyState(const std::string& id,
                                                               const std::string& tenant) {
  std::shared_ptr<Session> session;
  {
    std::lock_guard lock(mutex_);
    absl::StatusOr<std::shared_ptr<Session>> found = sessions_.Find(id, tenant);
    if (!found.ok()) return found.status();
    session = *std::move(found);
    if (session->busy) {
      return absl::FailedPreconditionError(
          absl::StrCat("session ", id, ": in use by another call"));
    }
  }
  std::vector<std::byte> bytes(pool_.SnapshotBytes(session->state));
  pool_.CopyOut(session->state, bytes);
  return bytes;
}

void Engine::Loop::ExpireSessions(absl::Time now) {
  if (now < next_expiry_) return;
  std::vector<std::shared_ptr<Session>> expired;
  {
    std::lock_guard lock(mutex_);
    expired = sessions_.TakeExpired(now);
    next_expiry_ = sessions_.NextExpiry();
  }
  for (const std::shared_ptr<Session>& session : expired) {
    const int64_t position = session->position();
    ReleaseSession(*session);
    SessionEvent({.event = "expire", .duration = {}, .position = position});
  }
}

}  // namespace ovq
