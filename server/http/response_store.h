// Texts of the stored responses of /v1/responses; their sessions are the engine's.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

namespace ovq::server {

// A response lives as long as its session. Its text is kept here, within a budget in bytes: beyond
// it the oldest texts are dropped, and those responses can be continued but not shown. Any thread.
class ResponseStore {
 public:
  explicit ResponseStore(size_t budget_bytes) : budget_(budget_bytes) {}

  struct Stored {
    bool operator==(const Stored&) const = default;
    std::string json;          // the response
    std::string instructions;  // digest of the instructions, inherited ones included; "" without
  };
  void Put(const std::string& session_id, Stored stored);
  std::optional<Stored> Get(const std::string& session_id) const;
  void Remove(const std::string& session_id);

 private:
  struct Entry {
    Stored stored;
    std::list<std::string>::iterator age;
  };
  static size_t Bytes(const std::string& id, const Stored& stored);
  void Drop(const std::string& session_id);

  const size_t budget_;
  mutable std::mutex mutex_;  // guards the members below
  std::unordered_map<std::string, Entry> entries_;
  std::list<std::string> by_age_;  // oldest first
  size_t bytes_ = 0;
};

}  // namespace ovq::server
