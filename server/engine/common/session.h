// The tokens of a conversation, and a session: one that outlives its requests.
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

namespace ovq {

struct Checkpoint;
struct Request;

// Gets the result of work that ends later, success or not.
using StatusCallback = std::function<void(absl::Status)>;
// Starts a request that has its sequence.
using StartRequest = std::function<void(std::shared_ptr<Request>)>;

// The last token of a conversation waits outside the state until something follows it; it is then
// the first row of what is consumed. So the state is a function of the consumed tokens alone, and a
// conversation can always continue from its last token.
struct Sequence {
  StateHandle state;               // state.position = tokens consumed
  std::optional<int32_t> pending;  // the token that waits

  int64_t position() const { return state.position + (pending ? 1 : 0); }
};

// What Checkpoints keeps of a session.
struct CheckpointList {
  std::vector<std::shared_ptr<const Checkpoint>> kept;  // by position, rising
  int64_t made_at = 0;                                  // where the last one was made, kept or not
  int64_t use = 0;                                      // its place in the order of use
};

// What lies on disk of a session, where the engine has a SessionFolder.
struct SessionOnDisk {
  uint64_t version = 0;  // changes that it has
  int64_t length = 0;    // tokens of the conversation that it has
  // Tokens from there on.
  std::vector<int32_t> unsaved = {};
  int64_t snapshot_at = 0;    // tokens that the state of the last snapshot has consumed
  bool snapshotting = false;  // one is on its way
  bool behind = false;        // a change could not be written: the next one writes all
};

// Engine thread only, except where SessionTable says otherwise.
struct Session : Sequence {
  SessionInfo info;                         // what callers see
  std::string damage;                       // what happened at info.damaged_at
  std::optional<std::vector<int32_t>> log;  // all tokens of the conversation, if they are kept
  std::vector<int64_t> turn_ends;           // positions, rising; the last kMaxTurnEnds
  CheckpointList checkpoints;
  std::optional<SessionOnDisk> disk;
  std::unique_ptr<QuotaHold> hold;  // of the tenant's share
  std::string client;               // CallRequest::client of who used it last
  absl::Duration ttl = absl::InfiniteDuration();
  SteadyTime expires = kNever;
  bool deleted = false;  // while busy: ends when its run does

  // Its state is in memory; else on disk, with the log.
  bool resident() const { return state.base != nullptr; }
  // Into the log and what is to be saved, the tokens from position `begin` on; those that these
  // have already are skipped.
  void Record(int64_t begin, std::span<const int32_t> tokens);
};

// What a balancer may go by: 1 to 64 characters A-Z a-z 0-9 _ -.
bool IsSessionKey(std::string_view text);
// Has the form of an id: 32 hex digits, which a key and a dot may stand before.
bool IsSessionId(std::string_view text);

// Random bits for seeds and ids: such as nobody can guess (base/random.h), or for tests a sequence
// that follows from a seed.
class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : state_(seed), from_system_(seed == 0) {}
  uint64_t Next();
  std::string NextId();  // 32 hex digits

 private:
  uint64_t state_;
  const bool from_system_;
};

}  // namespace ovq
