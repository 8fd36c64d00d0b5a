// Defines S3Writer, the threads that make all changes of sessions in an object store: those of one
// session in their order, those of several at a time.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "server/s3/s3_ownership.h"

namespace ovq::s3 {

// A change of a session: an entry of its journal, or what `write` does.
struct S3Change {
  const char* kind;  // null: it is not reported
  std::string id;
  uint64_t term = 0;  // OwnedSessions::Term when it was asked for
  SteadyTime begin = {};
  std::string entry = {};
  std::function<absl::Status(S3Change&)> write = {};
  store::SessionStore::Done done = {};
  uint64_t bytes = 0;
  absl::Status status = {};  // a change that has failed before is only reported
  bool always = false;       // it is made however many others wait
};

// Thread-safe.
class S3Writer {
 public:
  S3Writer(S3Client& client, OwnedSessions& sessions, const S3StoreOptions& options,
           store::Report report);
  ~S3Writer() { Finish(); }

  // A change beyond kMostChanges of them fails with ResourceExhausted, unless it is made always.
  void Enqueue(S3Change change);
  // Stores a session's object once more, as it is.
  void Touch(const std::string& id, store::SessionStore::Done done);
  void Finish();  // makes all changes and ends the threads

  // How long a change is tried: at least a while from now, since a snapshot may have taken long.
  SteadyTime Deadline(const S3Change& change) const {
    return std::max(After(change.begin, options_.patience),
                    After(std::chrono::steady_clock::now(), options_.reply_timeout));
  }

 private:
  using Changes = std::vector<S3Change>;

  // Makes what waits for one session first: entries together, anything else alone.
  void MakeNext(const std::string& id);
  void WriteEntries(Changes& entries);

  S3Client& client_;
  OwnedSessions& sessions_;
  const S3StoreOptions options_;
  const store::Report report_;

  std::mutex mutex_;  // guards the members below
  size_t waiting_ = 0;
  std::map<std::string, std::deque<S3Change>> by_id_;  // a thread works on each

  store::WorkThreads threads_;
};

}  // namespace ovq::s3
