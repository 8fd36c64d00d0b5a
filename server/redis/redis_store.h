// Defines RedisStore, the store of sessions that is a Redis or Valkey server. Servers own sessions
// by a lease, one for each server, and an epoch of each session: every script that writes checks
// both, so that a server that was paused for longer than its lease changes nothing when it goes on.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "server/redis/redis_connection.h"
#include "server/store/session_store.h"

namespace ovq::redis {

struct RedisStoreOptions {
  RedisAddress address = {};
  absl::Duration lease = absl::Seconds(10);
  // A change is tried again for so long while the server cannot be reached.
  absl::Duration timeout = absl::Seconds(5);
  absl::Duration ownership_timeout = absl::Seconds(5);  // time for another server to release a
                                                        // session
  int replicas = 0;  // that must have a change before it is reported as done
};

class RedisStore final : public store::SessionStore {
 public:
  // Errors name the address. `report` is called on the store's threads. lost: is told of sessions
  // that this server owned when its lease ended; no server may rely on what it has of them.
  static absl::StatusOr<std::unique_ptr<RedisStore>> Open(
      RedisStoreOptions options, std::function<void(const store::StoreReport&)> report = {},
      std::function<void(const std::vector<std::string>&)> lost = {});
  ~RedisStore() override;

  absl::StatusOr<store::RecoveredSessions> Recover() override;
  void Acquire(const std::string& id, Acquired done) override;
  void SetListener(std::function<void(const std::string& id)> asked) override;
  void Release(const std::string& id) override;
  void Decline(const std::string& id) override;
  void Quarantine(const std::string& id) override;

  void Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
              MakeSnapshot snapshot, Done done) override;
  void Append(const std::string& id, store::JournalEntry entry, Done done) override;
  void Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) override;
  void Remove(const std::string& id, Done done) override;
  void PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) override;
  void RemoveText(const std::string& id) override;
  void ReadText(const std::string& id,
                std::function<void(absl::StatusOr<std::string>)> done) override;
  void Read(const std::string& id,
            std::function<void(absl::StatusOr<store::StoredSession>)> opened) override;
  void ReportRead(const store::StoredSession& stored, const absl::Status& status) const override;
  void Run(std::function<void()> work) override;

 private:
  using Time = std::chrono::steady_clock::time_point;

  // A session that this server owns.
  struct Owned {
    std::string epoch;
    size_t journal_bytes = 0;  // written by the journal thread once the session is acquired
  };
  // A change of a session, made by the journal thread: an entry, or what `write` does.
  struct Change {
    const char* kind;  // null: it is not reported
    std::string id;
    Time begin;
    std::string entry = {};
    std::function<absl::Status(Change&)> write = {};
    Done done = {};
    uint64_t bytes = 0;
    absl::Status status = {};
  };
  // The parts of a snapshot, which end by themselves unless a journal names them.
  struct Parts {
    std::string prefix = {};
    size_t count = 0;
    uint64_t bytes = 0;
  };
  struct Acquisition {
    std::string id;
    Time begin;
    Acquired done;
    Time asked = {};  // when another server was last asked
  };

  RedisStore(RedisStoreOptions options, std::function<void(const store::StoreReport&)> report,
             std::function<void(const std::vector<std::string>&)> lost);

  Command Script(const char* script, const std::string& id, std::vector<std::string> arguments);
  // Runs it on the journal thread's connection until it is answered or its time is over.
  absl::StatusOr<Reply> RunSurely(const Command& command, Time begin);
  absl::Status Replicated();
  void Enqueue(Change change);
  absl::Status WriteParts(const MakeSnapshot& make, Parts& parts);
  absl::Status CommitSnapshot(store::JournalHead head, const Parts& parts, Change& change);
  void JournalLoop();
  void WriteEntries(std::vector<Change>& changes, size_t begin, size_t end);
  void ReportChange(Change& change) const;
  void BulkLoop();
  void OwnerLoop();   // leases, and sessions to acquire
  void ListenLoop();  // requests of other servers
  void Renew(RedisConnection& connection);
  bool TryFinish(RedisConnection& connection, Acquisition& call, bool ending);
  absl::StatusOr<store::FoundSession> Check(RedisConnection& connection, const std::string& id,
                                            const Reply& reply);
  absl::StatusOr<Reply> RunOnce(Command command);  // on a connection of its own

  const RedisStoreOptions options_;
  const std::function<void(const store::StoreReport&)> report_;
  const std::function<void(const std::vector<std::string>&)> lost_;
  RedisConnection journal_;  // the journal thread's

  std::mutex mutex_;  // guards the members up to connections_
  std::condition_variable changed_;
  bool ending_ = false, owner_ending_ = false;
  int bulk_running_ = 0;
  std::string server_;  // this server's name, for one lease
  std::map<std::string, Owned> owned_;
  std::set<std::string> releasing_;
  std::deque<Change> changes_;
  std::deque<std::function<void()>> bulk_;
  std::vector<Acquisition> acquisitions_;
  std::function<void(const std::string&)> listener_;
  std::vector<std::unique_ptr<RedisConnection>> connections_;

  std::thread journal_thread_, owner_thread_, listen_thread_;
  std::vector<std::thread> bulk_threads_;
};

}  // namespace ovq::redis
