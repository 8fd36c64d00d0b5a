// A conversation and its memory, and the table of those that outlive a request.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "model/state_layout.h"
#include "server/engine/quota.h"
#include "server/engine/request.h"
#include "server/engine/state_pool.h"

namespace ovq {

// Pending token rule: the last token of a conversation waits outside the state until something
// follows it; it is then the first row of what is consumed. So the state is a function of the
// consumed tokens alone, and a session can always continue from its last token.
//
// `busy` and membership in the table are guarded by the engine's mutex. Everything else belongs to
// the engine thread, or, while not busy, to whoever holds that mutex for reading.
struct Session {
  std::string id;  // empty: ends with its request
  std::string tenant;
  StateHandle state;  // state.position = tokens consumed
  QuotaHold hold;     // of the tenant's share, in sessions that outlive a request
  std::optional<int32_t> pending;
  absl::Duration ttl = absl::InfiniteDuration();
  absl::Time created, last_used;
  int64_t prompt_tokens_total = 0, generated_tokens_total = 0;
  bool busy = false;
  bool deleted = false;  // ends when its run does

  int64_t position() const { return state.position + (pending ? 1 : 0); }
  absl::Time expires() const { return last_used + ttl; }
};

SessionInfo DescribeSession(const Session& session, const StateLayout& layout);

// What a balancer may go by: 1 to 64 characters A-Z a-z 0-9 _ -.
bool IsSessionKey(std::string_view text);
// Has the form of an id: 32 hex digits, which a key and a dot may stand before.
bool IsSessionId(std::string_view text);

// Random bits for seeds and ids: from the system, or for tests a sequence that follows from a seed.
class RandomSource {
 public:
  explicit RandomSource(uint64_t seed) : state_(seed), from_system_(seed == 0) {}
  uint64_t Next();
  std::string NextId();  // 32 hex digits

 private:
  uint64_t state_;
  const bool from_system_;
};

// Not thread-safe: guarded by the engine's mutex.
class SessionTable {
 public:
  // NotFound for an unknown id and, with the same words, for another tenant's session. A tenant
  // that is not given: any.
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& id,
                                                const std::optional<std::string>& tenant) const;
  void Insert(std::shared_ptr<Session> session);
  void Erase(const std::string& id) { by_id_.erase(id); }
  // Up to page_size sessions of the tenant (or of all) with ids after `after`, ordered by id; one
  // more than that tells the caller that there is a next page.
  std::vector<std::shared_ptr<Session>> Page(const std::optional<std::string>& tenant,
                                             int page_size, const std::string& after) const;
  // Takes out the sessions that are not busy and expired.
  std::vector<std::shared_ptr<Session>> TakeExpired(absl::Time now);
  absl::Time NextExpiry() const;  // of those not busy; InfiniteFuture if none

  int size() const { return static_cast<int>(by_id_.size()); }
  auto begin() const { return by_id_.begin(); }
  auto end() const { return by_id_.end(); }

 private:
  std::map<std::string, std::shared_ptr<Session>> by_id_;
};

}  // namespace ovq
