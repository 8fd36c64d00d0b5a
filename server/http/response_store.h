// Texts of the stored responses of /v1/responses; their sessions are the engine's.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace ovq::server {

// A response lives as long as its session. Its text is kept here, within a budget in bytes: beyond
// it the oldest texts are dropped, and those responses can be continued but not shown. Any thread.
class ResponseStore {
 public:
  explicit ResponseStore(size_t budget_bytes) : budget_(budget_bytes) {}

  struct Stored {
    bool operator==(const Stored&) const = default;
    std::string json;  // the response
    // Digests of the instructions and of the tools, inherited ones included; "" without.
    std::string instructions, tools = {};
  };
  void Put(const std::string& session_id, Stored stored) {
    std::lock_guard lock(mutex_);
    Drop(session_id);
    Entry entry = {session_id, std::move(stored)};
    const size_t bytes = Bytes(entry);
    if (bytes > budget_) return;
    while (bytes_ + bytes > budget_) Drop(std::string(by_age_.front().id));
    bytes_ += bytes;
    entries_[session_id] = by_age_.insert(by_age_.end(), std::move(entry));
  }
  std::optional<Stored> Get(const std::string& session_id) const {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(session_id);
    return found == entries_.end() ? std::nullopt : std::optional(found->second->stored);
  }
  void Remove(const std::string& session_id) {
    std::lock_guard lock(mutex_);
    Drop(session_id);
  }

 private:
  struct Entry {
    std::string id;
    Stored stored;
  };
  static size_t Bytes(const Entry& entry) {
    constexpr size_t kEntryBytes = 256;
    return kEntryBytes + 2 * entry.id.size() + entry.stored.json.size() +
           entry.stored.instructions.size() + entry.stored.tools.size();
  }
  void Drop(const std::string& session_id) {
    const auto found = entries_.find(session_id);
    if (found == entries_.end()) return;
    bytes_ -= Bytes(*found->second);
    by_age_.erase(found->second);
    entries_.erase(found);
  }

  const size_t budget_;
  mutable std::mutex mutex_;  // guards the members below
  std::list<Entry> by_age_;   // oldest first
  std::unordered_map<std::string, std::list<Entry>::iterator> entries_;
  size_t bytes_ = 0;
};

}  // namespace ovq::server
