#include "server/engine/sessions/session_rewind.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"

namespace ovq::engine {
namespace {

// Leaves what remains of an answer without its last tokens.
void CutUnfinished(std::optional<UnfinishedAnswer>& unfinished, int64_t n_tokens) {
  if (!unfinished || n_tokens == 0) return;
  const int64_t left = std::ssize(unfinished->tokens) - n_tokens;
  if (left <= 0) return unfinished.reset();
  unfinished->tokens.resize(static_cast<size_t>(left));
  unfinished->place.reset();
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

void SessionRewinder::Rewind(std::shared_ptr<PinnedSession> pin, const RewindOptions& options,
                             std::shared_ptr<CancelSignal> cancel, SteadyTime called,
                             RewindCallback done) {
  Session& session = **pin;
  if (absl::Status status = CheckRewind(session, options.position); !status.ok()) {
    pin->Release();
    return done(std::move(status));
  }
  const auto position = static_cast<int64_t>(options.position);
  const int64_t consumed = ConsumedAt(position);
  const bool stands = session.state.position == consumed;
  const int64_t replayed = stands ? 0 : core_.table.checkpoints().ReplayTokens(session, position);
  if (options.dry_run) {
    return done(RewindResult{core_.table.Info(*pin->Release()), replayed});
  }
  auto request = std::make_shared<Request>();
  request->tenant = options.tenant;
  request->prompt_tokens = replayed;
  if (absl::Status status = core_.admission.Charge(*request, 0, 0); !status.ok()) {
    pin->Release();
    return done(std::move(status));
  }
  pin->MarkUsed();
  request->session = pin->Detach();
  request->sequence = request->session;
  request->arrival = called;
  request->client = options.client;
  request->deadline = options.deadline;
  auto before = std::make_shared<StateSnapshot>();
  before->position = session.state.position;
  if (!stands) {
    absl::Status status = RestoreCheckpoint(session, consumed, replayed > 0, *before);
    if (!status.ok()) return done(std::move(status));
  }
  session.pending.reset();
  request->tokens.assign(session.log->begin() + session.state.position,
                         session.log->begin() + position);
  request->work = SessionWork{.kind = SessionWork::kRewind};
  request->cancel = std::move(cancel);
  request->on_end = [this, before, position, done = std::move(done)](Request& ended,
                                                                     absl::Status status) {
    if (status.ok()) return CommitRewind(ended, position, done);
    RestoreAfterFailedRewind(*ended.session, *before);
    done(std::move(status));
  };
  core_.start(std::move(request));
}

absl::Status SessionRewinder::RestoreCheckpoint(Session& session, int64_t consumed, bool replays,
                                                StateSnapshot& before) {
  absl::Status status;
  if (replays) {
    absl::StatusOr<StateSnapshot> now = core_.pool.Snapshot(session.state);
    status = now.status();
    if (status.ok()) before = *std::move(now);
  }
  if (status.ok()) status = core_.pool.Restart(session.state);
  if (!status.ok()) {
    core_.table.EndClaim(session);
    return status;
  }
  const StateSnapshot* from = core_.table.checkpoints().Before(session, consumed);
  if (from == nullptr) return status;
  status = core_.pool.CopyIn(session.state, from->position, from->span());
  if (!status.ok()) core_.disk.DropLostState(session, before.position);
  return status;
}

void SessionRewinder::CommitRewind(Request& request, int64_t position, RewindCallback done) {
  Session& session = *request.session;
  CutUnfinished(session.unfinished, std::ssize(*session.log) - position);
  {
    const auto lock = core_.table.Lock();
    session.log->resize(static_cast<size_t>(position));
    std::erase_if(session.turn_ends, [position](int64_t end) { return end > position; });
    core_.table.checkpoints().ForgetAfter(session, session.state.position);
  }
  core_.turns.CheckpointIfDue(session, 0);
  const auto told = [this, session = request.session, since = request.arrival, position,
                     replayed = request.prompt_tokens,
                     done = std::move(done)](absl::Status status) {
    core_.table.EndClaim(*session);
    if (!status.ok()) return done(std::move(status));
    core_.table.ReportEvent("rewind", position, since, replayed);
    done(RewindResult{core_.table.Info(*session), replayed});
    core_.disk.SnapshotIfDue(session);
  };
  core_.disk.Save(request.session, position, told);
}

void SessionRewinder::RestoreAfterFailedRewind(Session& session, const StateSnapshot& before) {
  if (session.deleted) return core_.table.Release(session);
  absl::Status status = core_.pool.Restart(session.state);
  if (status.ok()) status = core_.pool.CopyIn(session.state, before.position, before.span());
  if (!status.ok()) return core_.disk.DropLostState(session, before.position);
  session.pending.reset();
  if (session.state.position < std::ssize(*session.log)) session.pending = session.log->back();
  core_.table.EndClaim(session);
}

}  // namespace ovq::engine
