// Copies of sessions' states at earlier positions, from which sessions go back (rewind).
//
// A recurrence cannot be undone, so a session returns to a copy and reads the tokens since then
// again. Taking n tokens back needs fewer than n and twice the spacing to be read again while all
// copies that this keeps of a session fit the budget.
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

// The spacing: tokens that a session consumes between two copies, or one for so many bytes of a
// large state, so that copying them takes a few hundredths of the time of reading. Prompts are
// copied halfway to their end, halfway from there, and so on, and at their end.
inline constexpr int64_t kCheckpointTokens = 512;
inline constexpr size_t kCheckpointBytesPerToken = size_t{64} << 10;
// A turn's end is worth a copy after so many tokens that were drawn one by one.
inline constexpr int64_t kTurnCheckpointTokens = 64;

// A conversation of so many tokens has consumed all but the last one.
inline int64_t ConsumedAt(int64_t position) { return position > 0 ? position - 1 : 0; }

struct Checkpoint {
  // Of malloc, which makes the room of one copy that of another without touching its pages.
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Bytes = std::unique_ptr<std::byte[], Free>;

  int64_t position = 0;  // tokens consumed
  Bytes bytes;           // StatePool::CopyOut of `size` bytes
  size_t size = 0;
};

// Not thread-safe. Sessions with checkpoints stay where they are until Forget.
class Checkpoints {
 public:
  Checkpoints(size_t budget_bytes, StatePool& pool) : budget_(budget_bytes), pool_(pool) {}

  // Of the state as it is now; null for one that the budget could not hold.
  std::shared_ptr<const Checkpoint> Copy(const StateHandle& state);
  // The same before its bytes are there, for who writes them; they are to go by the engine thread.
  std::shared_ptr<Checkpoint> Make(const StateHandle& state);
  // The session's latest. Others of it go where they lie closer together than their distance from
  // here asks for; beyond the budget, those of sessions not added to for longest, earliest first.
  void Add(Session& session, std::shared_ptr<const Checkpoint> checkpoint);
  // The same for a copy of the session; they are counted once.
  void Share(const Session& from, Session& to);
  void ForgetAfter(Session& session, int64_t position);  // tokens consumed
  void Forget(Session& session) { ForgetAfter(session, -1); }

  // The last at this many consumed tokens or fewer; null: the session's beginning.
  static const Checkpoint* Before(const Session& session, int64_t position);
  // Tokens to be read again, from the last checkpoint on, to return to `position` tokens.
  static int64_t ReplayTokens(const Session& session, int64_t position);
  // Whether a state should have another copy: the last one was made at `made_at`, and `left` tokens
  // of its prompt are to come.
  static bool Due(const StateHandle& state, int64_t made_at, int64_t left);

  // Of the copies, and of what is kept for the next ones.
  size_t bytes() const { return held_->bytes; }

 private:
  void Use(Session& session);

  const size_t budget_;
  StatePool& pool_;
  // Shared with the copies, each of which takes its bytes off when its last session lets it go.
  struct Held {
    void ReuseMemory(Checkpoint& gone);
    void DropSpare();

    size_t bytes = 0;
    size_t copies = 0;
    // The latest large ones that went, for their room: to find fresh memory takes the system ten
    // times as long as filling what is there. They go with the last copy.
    struct Spare {
      Checkpoint::Bytes bytes;
      size_t size = 0;
    };
    std::vector<Spare> spares;
  };
  Checkpoint::Bytes RoomFor(size_t size);
  const std::shared_ptr<Held> held_ = std::make_shared<Held>();
  int64_t uses_ = 0;
  std::map<int64_t, Session*> by_use_;  // those with a checkpoint, by CheckpointList::use
};

}  // namespace ovq
