// Checkpoints: snapshots of sessions' states at earlier positions, for rewinding.
//
// A recurrence cannot be undone, so a rewind restores a checkpoint and prefills the tokens since
// then again. While all of a session's checkpoints fit the budget, a rewind by n tokens prefills
// fewer than n plus twice the spacing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "server/engine/common/session.h"
#include "server/engine/common/snapshot_store.h"

namespace ovq::engine {

// Spacing: tokens between two checkpoints of a session. A large state has a token of spacing per
// kCheckpointBytesPerToken, so that copying takes a few hundredths of the time of prefilling.
// Prompts get checkpoints halfway to their end, halfway from there, and so on, and at their end.
inline constexpr int64_t kCheckpointTokens = 512;
inline constexpr size_t kCheckpointBytesPerToken = size_t{64} << 10;
// A turn that drew tokens gets a checkpoint at its end if this many tokens were consumed since the
// last one.
inline constexpr int64_t kTurnCheckpointTokens = 64;

// Consumed tokens of a conversation with `position` tokens: all but the last one, which is pending.
inline int64_t ConsumedAt(int64_t position) { return position > 0 ? position - 1 : 0; }

// All sessions' checkpoints by session id, within one budget. Not thread-safe.
class Checkpoints : public SnapshotStore {
 public:
  Checkpoints(size_t budget_bytes, StatePool& pool);

  // Adds the session's latest checkpoint. Drops older ones of the session that lie closer together
  // than their distance from the latest justifies; beyond the budget, drops checkpoints of the
  // sessions that were added to least recently, lowest positions first.
  void Add(Session& session, std::shared_ptr<const StateSnapshot> checkpoint);
  // Gives a copy of the session the same checkpoints; their bytes count once.
  void Share(const Session& from, Session& to);
  // Drops the session's checkpoints at more than this many consumed tokens.
  void ForgetAfter(Session& session, int64_t position);
  void Forget(Session& session) { ForgetAfter(session, -1); }

  // The last checkpoint at no more than this many consumed tokens. Null: the session's beginning.
  const StateSnapshot* Before(const Session& session, int64_t position) const;
  // Tokens to prefill again for a return to a conversation of `position` tokens.
  int64_t ReplayTokens(const Session& session, int64_t position) const;
  // Whether a state should get a checkpoint: the last one was made at position `made_at`, and
  // `left` tokens of the prompt remain.
  static bool Due(const StateHandle& state, int64_t made_at, int64_t left);
};

}  // namespace ovq::engine
