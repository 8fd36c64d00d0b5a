// Defines TextOrder, which keeps the changes of a session's text in their order while several
// threads write texts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace ovq::disk {

// Thread-safe.
class TextOrder {
 public:
  // Begins a change of the session's text and returns its number, above 0.
  uint64_t Begin(const std::string& id);
  // Ends it. False if a later one has ended before, so that this one must have no effect.
  bool End(const std::string& id, uint64_t number);

 private:
  struct Session {
    size_t pending = 0;  // changes that have begun
    uint64_t last = 0;   // the highest number that has ended
  };

  std::mutex mutex_;  // guards the members below
  uint64_t number_ = 0;
  std::map<std::string, Session> by_id_;  // with pending changes
};

}  // namespace ovq::disk
