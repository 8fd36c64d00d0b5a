// Texts that callers keep with sessions, such as what a stored response said.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/common/session.h"
#include "server/store/session_store.h"

namespace ovq::engine {

// Null: the session has none.
using SessionText = std::shared_ptr<const std::string>;
using SessionTextCallback = std::function<void(absl::StatusOr<SessionText>)>;

// A session has one text at most, in memory or, with a store, in a file of the session's, which
// ends with it. Beyond a budget in bytes the texts of the oldest sessions are dropped. Any thread.
class SessionTexts {
 public:
  // store: null without one; it outlives this.
  SessionTexts(size_t budget_bytes, store::SessionStore* store)
      : budget_(budget_bytes), store_(store) {}

  // Calls `done` once the text is where the session is; it is dropped if it alone is beyond the
  // budget. `done` may be called on a thread of the store's.
  void Put(const SessionInfo& session, SessionText text, StatusCallback done);
  // `reserve` gets the bytes of the text before it is read, and may refuse them. `done` is called
  // at once, or on a thread of the store's.
  void Get(const std::string& id, const std::function<absl::Status(size_t bytes)>& reserve,
           SessionTextCallback done) const;
  // Counts the text, of so many bytes, of a session that was found in the store.
  void AddFound(const SessionInfo& session, size_t bytes);
  // Forgets a session that this server does not have any more. The store's files are its own.
  void Forget(const std::string& id);

 private:
  struct Entry {
    absl::Time created;
    size_t bytes = 0;
    SessionText text = {};  // null: in the store
  };
  // With the mutex held: adds the entry and returns the ids of those that it drops, its own if it
  // is beyond the budget.
  std::vector<std::string> Add(const std::string& id, Entry entry);
  void Drop(const std::string& id);
  void RemoveFiles(const std::vector<std::string>& ids) const;

  const size_t budget_;
  store::SessionStore* const store_;
  mutable std::mutex mutex_;  // guards the members below
  std::map<std::string, Entry> entries_;
  std::set<std::pair<absl::Time, std::string>> by_age_;
  size_t bytes_ = 0;
};

}  // namespace ovq::engine
