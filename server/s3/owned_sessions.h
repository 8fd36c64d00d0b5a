// Defines OwnedSessions, the sessions of an object store that this server owns, as far as it knows,
// and by which it changes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/s3/session_object.h"
#include "server/store/owned_table.h"

namespace ovq::s3 {

// A session in the hands of the one thread that writes it.
struct HeldSession {
  std::string id = {};
  uint64_t term = 0;                        // as in OwnedSessions
  uint64_t epoch = 0;                       // 0: this server does not own the session
  std::optional<StoredObject> stored = {};  // nullopt: it has to be read
};

struct Owned {
  uint64_t term = 0, epoch = 0;
  bool creating = false;  // it is not stored yet
  bool told = false;      // as found
  std::optional<StoredObject> stored = {};
  std::list<std::string>::iterator used = {};  // of those that are kept, if something is stored
};

// Thread-safe.
class OwnedSessions : public store::OwnedTable<Owned> {
 public:
  // Changes an object before it is stored; it may be called again on what is stored then. Cancelled
  // if nothing is to be stored, which is no error.
  using Change = std::function<absl::Status(SessionObject& object)>;

  // server: this server's name. cache_bytes: of tails of journals that are kept, so that a write
  // need not read them before.
  OwnedSessions(S3Client& client, std::string server, size_t cache_bytes)
      : client_(client), server_(std::move(server)), cache_bytes_(cache_bytes) {}

  void Add(const std::string& id, StoredObject stored);
  // Adds a session that is not stored yet and returns its term; 0 if it is here already.
  uint64_t BeginCreate(const std::string& id);
  // Forgets a session that is here in this term, and returns what is known of it.
  HeldSession Remove(const std::string& id, uint64_t term);
  // Forgets a session that another server owns, if it is here in this term, and tells the listener
  // before anybody else can find that it is not here.
  void Lose(const std::string& id, uint64_t term);
  // A term is this server's number of the time in which it owns a session; 0: it does not. What was
  // asked for in one term does not happen in another.
  uint64_t Term(const std::string& id) const;
  bool Owns(const std::string& id, uint64_t epoch) const;
  std::vector<std::string> All() const;  // ids

  // Changes a session. At most one thread at a time changes it. Aborted if this server does not own
  // the session, which is lost then if it thought so; Unknown instead if an earlier attempt got no
  // answer, so that it may have been carried out before. gone: the status for a session that is not
  // there, and not owned.
  absl::Status Commit(const std::string& id, uint64_t term, const Change& change,
                      const absl::Status& gone, SteadyTime until);
  // Does the same for a session that is held. Aborted if another server owns it, NotFound if it is
  // not there. `unanswered` becomes true if an attempt got no answer.
  absl::Status Write(HeldSession& held, const Change& change, SteadyTime until, bool& unanswered);

  const std::string& server() const { return server_; }

 private:
  HeldSession Hold(const std::string& id, uint64_t term);
  void Return(HeldSession held);
  // These need mutex_.
  void Keep(const std::string& id, Owned& owned, StoredObject stored);
  std::optional<StoredObject> Drop(Owned& owned);

  S3Client& client_;
  const std::string server_;
  const size_t cache_bytes_;

  // mutex_ guards these, too.
  uint64_t last_term_ = 0;
  std::list<std::string> used_;  // ids of those that are kept, the one used last at the end
  size_t kept_bytes_ = 0;
};

}  // namespace ovq::s3
