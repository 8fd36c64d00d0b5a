// Defines OwnedSessions, the sessions of a store in Redis that this server owns, as far as it
// knows.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/redis/redis_connection.h"
#include "server/store/owned_table.h"

namespace ovq::redis {

inline constexpr char kNotOwned[] = "0";  // the epoch of a session that this server does not own

// A write's place among those of its session's owner (redis_scripts.h).
struct WriteNumber {
  std::string id;
  std::string epoch = kNotOwned;
  uint64_t number = 1;  // of this write
  // The numbers of which the last write that was done has one; none if a journal entry may be there
  // or not, which only a snapshot can put right.
  std::vector<uint64_t> before = {0};

  bool owned() const { return epoch != kNotOwned; }
  std::string Before() const;  // as ARGV[4] of the scripts
};

struct Owned {
  std::string epoch;
  uint64_t next = 1;                 // number of the next write
  std::vector<uint64_t> last = {0};  // its WriteNumber::before
  bool creating = false;
  bool told = false;  // as found
};

// Thread-safe.
class OwnedSessions : public store::OwnedTable<Owned> {
 public:
  void Add(const std::string& id, const std::string& epoch);
  // Adds a session that Redis does not have yet, with the epoch of a new one. False if the session
  // is here already. Until EndCreate, All leaves it out.
  bool BeginCreate(const std::string& id);
  void EndCreate(const std::string& id);
  void Remove(const std::string& id);
  // Forgets a session that another server owns, unless it is here in another epoch, and tells the
  // listener.
  void Lose(const std::string& id, const std::string& epoch);
  std::vector<std::pair<std::string, std::string>> All() const;  // ids and epochs

  // The epoch in which this server owns the session; kNotOwned if it does not.
  std::string Epoch(const std::string& id) const;

  // Numbers the session's next write. epoch: the one in which it was asked for; a write that waited
  // while the session was another server's is none of an owner's. The writes of a session are
  // numbered in their order, and EndWrite is called for each in that order, with Redis's answer.
  WriteNumber NextWrite(const std::string& id, const std::string& epoch);
  // Returns the write's status. Aborted if this server does not own the session, which is lost then
  // if it thought so; Unknown instead if an earlier attempt of the write got no answer
  // (`unanswered`), so that it may have been carried out before. gone: the status for a session
  // that is not there. entry: the write is one of the journal.
  absl::Status EndWrite(const WriteNumber& write, const absl::StatusOr<Reply>& reply,
                        const absl::Status& gone, bool unanswered, bool entry);
};

}  // namespace ovq::redis
