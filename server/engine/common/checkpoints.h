// Checkpoints: copies of sessions' states at earlier positions, for rewinding.
//
// A recurrence cannot be undone, so a rewind restores a checkpoint and prefills the tokens since
// then again. While all of a session's checkpoints fit the budget, a rewind by n tokens prefills
// fewer than n plus twice the spacing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

#include "server/engine/common/session.h"
#include "server/engine/common/state_pool.h"

namespace ovq {

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

struct Checkpoint {
  // Memory comes from malloc, whose realloc can reuse a block at another size without touching its
  // pages.
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Bytes = std::unique_ptr<std::byte[], Free>;

  int64_t position = 0;  // tokens consumed
  Bytes bytes;           // `size` bytes in the order of StatePool::CopyOut
  size_t size = 0;
};

// All sessions' checkpoints, within one budget. Not thread-safe. A session with checkpoints must
// not move in memory until Forget.
class Checkpoints {
 public:
  Checkpoints(size_t budget_bytes, StatePool& pool) : budget_(budget_bytes), pool_(pool) {}

  // Copies the current state. Null if the copy exceeds the budget or memory runs out.
  std::shared_ptr<const Checkpoint> Copy(const StateHandle& state);
  // Makes a checkpoint whose bytes the caller fills in, possibly on another thread. It must be
  // destroyed on the engine thread. Null as Copy.
  std::shared_ptr<Checkpoint> Make(const StateHandle& state);
  // Adds the session's latest checkpoint. Drops older ones of the session that lie closer together
  // than their distance from the latest justifies; beyond the budget, drops checkpoints of the
  // sessions that were added to least recently, lowest positions first.
  void Add(Session& session, std::shared_ptr<const Checkpoint> checkpoint);
  // Gives a copy of the session the same checkpoints; their bytes count once.
  void Share(const Session& from, Session& to);
  // Drops the session's checkpoints at more than this many consumed tokens.
  void ForgetAfter(Session& session, int64_t position);
  void Forget(Session& session) { ForgetAfter(session, -1); }

  // The last checkpoint at no more than this many consumed tokens. Null: the session's beginning.
  static const Checkpoint* Before(const Session& session, int64_t position);
  // Tokens to prefill again for a return to a conversation of `position` tokens.
  static int64_t ReplayTokens(const Session& session, int64_t position);
  // Whether a state should get a checkpoint: the last one was made at position `made_at`, and
  // `left` tokens of the prompt remain.
  static bool Due(const StateHandle& state, int64_t made_at, int64_t left);

  // Bytes of checkpoints and of spare memory for later ones.
  size_t bytes() const { return held_->bytes; }

 private:
  void Use(Session& session);

  const size_t budget_;
  StatePool& pool_;
  // Shared with the checkpoints: each subtracts its bytes when its last session drops it.
  struct Held {
    void ReuseMemory(Checkpoint& gone);
    void DropSpare();

    size_t bytes = 0;
    size_t copies = 0;
    // Memory of large checkpoints that were dropped last, for reuse: fresh memory costs the system
    // ten times as long as filling existing pages. Freed with the last checkpoint.
    struct Spare {
      Checkpoint::Bytes bytes;
      size_t size = 0;
    };
    std::vector<Spare> spares;
  };
  Checkpoint::Bytes RoomFor(size_t size);
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
  int64_t uses_ = 0;
  std::map<int64_t, Session*> by_use_;  // sessions with a checkpoint, by CheckpointList::use
};

}  // namespace ovq
