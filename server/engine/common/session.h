// A sequence (state and waiting token of a conversation), and a session: a sequence that outlives
// its requests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/quota.h"
#include "server/engine/common/state_pool.h"

namespace ovq::engine {

struct Request;

// Receives the result of asynchronous work.
using StatusCallback = std::function<void(absl::Status)>;
// Starts a request whose sequence is set.
using StartRequest = std::function<void(std::shared_ptr<Request>)>;

// The last token of a conversation stays pending, outside the state, until more tokens follow; it
// is then consumed first. So the state is a function of the consumed tokens alone, and a
// conversation can always continue from its last token.
struct Sequence {
  StateHandle state;               // state.position = tokens consumed
  std::optional<int32_t> pending;  // last token, not consumed yet

  int64_t position() const { return state.position + (pending ? 1 : 0); }
};

// The part of a session that is on disk, if the engine has a SessionStore.
struct SessionOnDisk {
  uint64_t version = 0;  // number of changes on disk
  int64_t length = 0;    // tokens of the conversation on disk
  // Tokens from `length` on, not yet on disk.
  std::vector<int32_t> unsaved = {};
  int64_t snapshot_at = 0;                 // tokens consumed by the state of the last snapshot
  size_t bytes_since = 0;                  // of journal entries since that snapshot
  bool snapshotting = false;               // a snapshot is being written
  int texts_pending = 0;                   // texts of the session that are being written
  bool behind = false;                     // a write failed: the next one writes the whole session
  absl::Time used = absl::InfinitePast();  // the last use that the disk has
};

// A named conversation that requests continue. Engine thread only, except where SessionTable says
// otherwise.
struct Session : Sequence {
  SessionInfo info;    // as reported to callers
  std::string damage;  // cause of the damage at info.damaged_at
  // A constrained answer at its end that a call may go on with; in memory with the state.
  std::optional<UnfinishedAnswer> unfinished;
  std::optional<std::vector<int32_t>> log;  // all tokens of the conversation, if kept
  std::vector<int64_t> turn_ends;           // the last kMaxTurnEnds positions, ascending
  int64_t checkpoint_at = 0;                // position of the last one made, kept or not
  std::optional<SessionOnDisk> disk;
  std::unique_ptr<QuotaHold> hold;  // counts against the tenant's quota
  std::string client;               // CallRequest::client of the last call that used it
  absl::Duration ttl = absl::InfiniteDuration();
  SteadyTime expires = kNever;
  bool deleted = false;  // deleted while busy: removed when its request ends
  bool lost = false;     // likewise, because this server does not own it any more

  // Whether the state is in memory; otherwise the state and the log are on disk.
  bool resident() const { return state.base != nullptr; }
  // Appends tokens, the first of which is at position `begin`, to the log and to the unsaved
  // tokens. Tokens that these have already are skipped.
  void Record(int64_t begin, std::span<const int32_t> tokens);
};

// The error of a call whose session this server does not own any more: Unavailable if the call
// changed nothing, and may be made again; DataLoss if the session may have what it changed.
absl::Status LostSession(const std::string& id, bool maybe_stored = false);

// Whether the text is a session key, by which a load balancer can route: 1 to 64 characters of
// A-Z a-z 0-9 _ -.
bool IsSessionKey(std::string_view text);
// Whether the text has the form of a session id: 32 hex digits, optionally after a key and a dot.
bool IsSessionId(std::string_view text);

// Random bits for seeds and ids: unguessable ones (base/random.h) if the seed is 0, otherwise, for
// tests, a sequence determined by the seed.
class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : state_(seed), from_system_(seed == 0) {}
  uint64_t Next();
  std::string NextId();  // 32 hex digits

 private:
  uint64_t state_;
  const bool from_system_;
};

}  // namespace ovq::engine
