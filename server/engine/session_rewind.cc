// What of the SessionStore takes sessions back: turns, checkpoints, rewinding.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/disk/journal.h"
#include "server/engine/error_facts.h"
#include "server/engine/limits.h"
#include "server/engine/session_store.h"

namespace ovq {
namespace {

// A conversation of so many tokens has consumed all but the last.
int64_t ConsumedAt(int64_t position) { return std::max<int64_t>(position - 1, 0); }

// To be read again from the last checkpoint on.
int64_t ReplayTo(const Session& session, int64_t position) {
  const int64_t consumed = ConsumedAt(position);
  const Checkpoint* from = Checkpoints::Before(session, consumed);
  return consumed - (from == nullptr ? 0 : from->position);
}

absl::Status CheckRewind(const Session& session, uint64_t position) {
  if (!session.log) {
    return absl::FailedPreconditionError(absl::StrCat(
        "session ", session.info.id, ": keeps no tokens (keep_tokens), so it cannot go back"));
  }
  const auto most = static_cast<uint64_t>(session.position());
  if (position <= most) return absl::OkStatus();
  return BadField("position", absl::StrCat("at most ", most, ", the session's"), position);
}

}  // namespace

std::vector<TurnEnd> SessionStore::Turns(const Session& session) {
  std::vector<TurnEnd> turns;
  for (const int64_t end : session.turn_ends) turns.push_back({end, ReplayTo(session, end)});
  return turns;
}

void SessionStore::Keep(Session& session) {
  std::shared_ptr<const Checkpoint> copy = checkpoints_.Copy(session.state);
  std::lock_guard lock(mutex_);
  if (copy != nullptr) checkpoints_.Add(session, std::move(copy));
}

void SessionStore::MayCheckpoint(Session& session, int64_t left) {
  if (!session.log || session.deleted) return;
  if (Checkpoints::Due(session.state, session.checkpoints.made_at, left)) Keep(session);
}

void SessionStore::EndOfTurn(Session& session, int64_t generated) {
  const int64_t end = session.position(),
                since = session.state.position - session.checkpoints.made_at;
  if (session.log && generated > 0 && since >= kTurnCheckpointTokens) {
    Keep(session);
  } else {
    MayCheckpoint(session, 0);
  }
  std::vector<int64_t>& ends = session.turn_ends;
  if (!session.log || end == (ends.empty() ? 0 : ends.back())) return;
  std::lock_guard lock(mutex_);
  ends.push_back(end);
  if (ends.size() > kMaxTurnEnds) ends.erase(ends.begin());
}

absl::Status SessionStore::PrepareRewind(const RewindOptions& options, Request& request,
                                         RewindResult& result) {
  std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> found,
                   FindIdle(options.session_id, options.tenant));
  Session& session = *found;
  RETURN_IF_ERROR(CheckRewind(session, options.position));
  const auto position = static_cast<int64_t>(options.position);
  const bool stands = session.state.position == ConsumedAt(position);
  result = {session.info, stands ? 0 : ReplayTo(session, position)};
  if (options.dry_run) return absl::OkStatus();
  request.tenant = options.tenant;
  request.prompt_tokens = result.replay_tokens;
  RETURN_IF_ERROR(admission_.Charge(request, 0, 0));
  SetBusy(session, true);
  request.session = found;
  request.sequence = found;
  return absl::OkStatus();
}

std::shared_ptr<Request> SessionStore::Rewind(RewindOptions options,
                                              std::shared_ptr<CancelSignal> cancel,
                                              SteadyTime called, RewindCallback done) {
  auto request = std::make_shared<Request>();
  absl::Status status = admission_.Enter();
  if (!status.ok()) {
    done(std::move(status));
    return nullptr;
  }
  RewindResult result;
  status = PrepareRewind(options, *request, result);
  if (!status.ok() || options.dry_run) {
    admission_.Leave();
    if (status.ok()) {
      done(std::move(result));
    } else {
      done(std::move(status));
    }
    return nullptr;
  }
  Session& session = *request->session;
  request->arrival = called;
  request->client = options.client;
  request->deadline = options.deadline;
  RewindWork work{.position = static_cast<int64_t>(options.position),
                  .before = {},
                  .position_before = session.state.position,
                  .cancel = std::move(cancel),
                  .done = std::move(done)};
  const int64_t consumed = ConsumedAt(work.position);
  if (consumed != session.state.position) {
    status = GoBack(session, consumed, result.replay_tokens > 0, work);
    if (!status.ok()) {
      admission_.Leave();
      work.done(std::move(status));
      return nullptr;
    }
  }
  session.pending.reset();
  request->tokens.assign(session.log->begin() + session.state.position,
                         session.log->begin() + work.position);
  request->work = std::move(work);
  return request;
}

absl::Status SessionStore::GoBack(Session& session, int64_t consumed, bool replays,
                                  RewindWork& work) {
  absl::Status status;
  if (replays) {
    absl::StatusOr<std::vector<std::byte>> before = pool_.Snapshot(session.state);
    status = before.status();
    if (status.ok()) work.before = *std::move(before);
  }
  if (status.ok()) status = pool_.Restart(session.state);
  if (!status.ok()) {
    EndUse(session);
    return status;
  }
  const Checkpoint* from = Checkpoints::Before(session, consumed);
  if (from == nullptr) return status;
  status = pool_.CopyIn(session.state, from->position, std::span(from->bytes.get(), from->size));
  if (!status.ok()) Lose(session, work.position_before);
  return status;
}

void SessionStore::Lose(Session& session, int64_t consumed) {
  session.state.position = consumed;
  session.pending.reset();
  if (consumed < std::ssize(*session.log)) session.pending = session.log->back();
  if (session.disk && !session.disk->behind) {
    MoveOut(session);
    return EndUse(session);
  }
  {
    std::lock_guard lock(mutex_);
    Count(session, -1);
    by_id_.erase(session.info.id);
    session.deleted = true;
  }
  RemoveFiles(session, [](const absl::Status&) {});
  Release(session);
}

void SessionStore::Rewound(Request& request, RewindCallback done) {
  Session& session = *request.session;
  const int64_t position = std::get<RewindWork>(request.work).position;
  {
    std::lock_guard lock(mutex_);
    session.log->resize(static_cast<size_t>(position));
    std::erase_if(session.turn_ends, [position](int64_t end) { return end > position; });
    checkpoints_.ForgetAfter(session, session.state.position);
  }
  MayCheckpoint(session, 0);
  const auto told = [this, session = request.session, since = request.arrival, position,
                     replayed = request.prompt_tokens,
                     done = std::move(done)](absl::Status status) {
    EndUse(*session);
    if (!status.ok()) return done(std::move(status));
    const absl::Duration duration = TimeBetween(since, config_.options.clock.steady());
    config_.events.session_event(
        {.event = "rewind", .duration = duration, .position = position, .replayed = replayed});
    std::unique_lock lock(mutex_);
    RewindResult result = {session->info, replayed};
    lock.unlock();
    done(std::move(result));
    MaySnapshot(session);
  };
  Save(request.session, position, told);
}

void SessionStore::Unrewound(Request& request) {
  Session& session = *request.session;
  if (session.deleted) return Release(session);
  const RewindWork& work = std::get<RewindWork>(request.work);
  absl::Status status = pool_.Restart(session.state);
  if (status.ok()) status = pool_.CopyIn(session.state, work.position_before, work.before);
  if (!status.ok()) return Lose(session, work.position_before);
  session.pending.reset();
  if (session.state.position < std::ssize(*session.log)) session.pending = session.log->back();
  std::lock_guard lock(mutex_);
  Free(session);
}

}  // namespace ovq
