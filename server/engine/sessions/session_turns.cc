#include "server/engine/sessions/session_turns.h"

#include <memory>
#include <utility>
#include <vector>

namespace ovq::engine {

void SessionTurns::KeepCheckpoint(Session& session) {
  std::shared_ptr<const StateSnapshot> copy = table_.checkpoints().Copy(session.state);
  const auto lock = table_.Lock();
  if (copy != nullptr) table_.checkpoints().Add(session, std::move(copy));
}

void SessionTurns::CheckpointIfDue(Session& session, int64_t left) {
  if (!session.log || session.deleted) return;
  if (Checkpoints::Due(session.state, session.checkpoint_at, left)) KeepCheckpoint(session);
}

void SessionTurns::RecordTurnEnd(Session& session, int64_t generated) {
  const int64_t end = session.position(), since = session.state.position - session.checkpoint_at;
  if (session.log && generated > 0 && since >= kTurnCheckpointTokens) {
    KeepCheckpoint(session);
  } else {
    CheckpointIfDue(session, 0);
  }
  std::vector<int64_t>& ends = session.turn_ends;
  if (!session.log || end == (ends.empty() ? 0 : ends.back())) return;
  const auto lock = table_.Lock();
  ends.push_back(end);
  if (ends.size() > store::kMaxTurnEnds) ends.erase(ends.begin());
}

void SessionTurns::PublishProgress(Request& request) {
  if (!request.session->deleted) table_.Update(*request.session, [] {});
}

void SessionTurns::SetDamaged(Session& session, int64_t position, std::string_view damage) {
  const auto lock = table_.Lock();
  session.info.damaged_at = position;
  session.damage = damage;
  table_.checkpoints().Forget(session);
  // This keeps it from being written to disk, swapped out or handed to another server.
  if (session.disk) session.disk->behind = true;
}

void SessionTurns::EndTurn(Request& request, StatusCallback then) {
  const std::shared_ptr<Session> session = request.session;
  const GenerateWork& work = *request.generate();
  const int64_t generated = work.answers.empty() ? 0 : work.answers[0]->generated();
  const bool damaged = session->info.damaged_at.has_value();
  if (session->resident() && !session->deleted && !damaged) RecordTurnEnd(*session, generated);
  if (session->resident() && session->position() != request.cached_tokens) {
    session->unfinished.reset();
    if (!work.answers.empty()) session->unfinished = work.answers[0]->Unfinished();
  }
  auto lock = table_.Lock();
  // A turn that could not start has prefilled nothing.
  const int64_t read =
      session->resident() ? session->position() - request.cached_tokens - generated : 0;
  session->info.generated_tokens_total += generated;
  session->info.prompt_tokens_total += read;
  lock.unlock();
  disk_.Save(session, session->disk ? session->disk->length : 0,
             [this, session, checked = !request.prefilling(),
              then = std::move(then)](absl::Status status) {
               table_.EndClaim(*session);
               then(std::move(status));
               // The state of a prompt that ended early may hold NaN that nobody has seen yet:
               // its tokens are saved, but no snapshot.
               if (checked) disk_.SnapshotIfDue(session);
             });
}

}  // namespace ovq::engine
