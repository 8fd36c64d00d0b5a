// Defines OwnedSessions, the sessions of a store in Redis that this server owns, as far as it
// knows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/redis/redis_connection.h"

namespace ovq::redis {

// A write's place among those of its session's owner (redis_scripts.h).
struct WriteNumber {
  std::string id;
  std::string epoch = "0";  // "0": this server does not own the session
  uint64_t number = 1;      // of this write
  uint64_t before = 0;      // of the last one that was done
  bool known = true;        // false: what became of the last one is not known

  bool owned() const { return epoch != "0"; }
};

// Thread-safe.
class OwnedSessions {
 public:
  // Sets the function that is told of lost sessions; null for none.
  void SetListener(std::function<void(const std::string& id)> lost);
  void Add(const std::string& id, const std::string& epoch);
  // Adds a session that Redis does not have yet, with the epoch of a new one. False if the session
  // is here already. Until EndCreate, All leaves it out.
  bool BeginCreate(const std::string& id);
  void EndCreate(const std::string& id);
  void Remove(const std::string& id);
  // Forgets a session that another server owns, unless it is here in another epoch, and tells the
  // listener.
  void Lose(const std::string& id, const std::string& epoch);
  bool Contains(const std::string& id) const;
  size_t size() const;
  std::vector<std::pair<std::string, std::string>> All() const;  // ids and epochs

  // Numbers the session's next write. The writes of a session are numbered in their order, and
  // EndWrite is called for each in that order, with Redis's answer.
  WriteNumber NextWrite(const std::string& id);
  // Returns the write's status. Aborted if this server does not own the session, which is lost then
  // if it thought so; Unknown instead if an earlier attempt of the write got no answer
  // (`unanswered`), so that it may have been carried out before. gone: the status for a session
  // that is not there.
  absl::Status EndWrite(const WriteNumber& write, const absl::StatusOr<Reply>& reply,
                        const absl::Status& gone, bool unanswered);

 private:
  struct Owned {
    std::string epoch;
    uint64_t next = 1, done = 0;  // numbers of writes
    bool known = true;            // what became of the last one
    bool creating = false;
  };

  mutable std::mutex mutex_;  // guards the members below
  std::map<std::string, Owned> by_id_;
  std::function<void(const std::string&)> lost_;
};

}  // namespace ovq::redis
