// Session commands of a conversation, as calls of SessionService. Each prints its result or error
// to stderr.
#pragma once

#include <optional>
#include <string>

#include "clients/channel/channel.h"

namespace ovq::clients {

class Sessions {
 public:
  explicit Sessions(const Connection& connection) : connection_(connection) {}

  void Show(const std::string& id) const;
  // Copies the session and prints the copy's id.
  void Fork(const std::string& id) const;
  // Returns true if the session is back at the position.
  bool Rewind(const std::string& id, uint64_t position) const;
  // Exports the session to a new file, which is removed if the call fails.
  void Save(const std::string& id, const std::string& path) const;
  // Creates a session from a file and prints its id.
  void Load(const std::string& path) const;

 private:
  const Connection& connection_;
};

}  // namespace ovq::clients
