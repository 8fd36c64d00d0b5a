// What a conversation does with sessions beside talking: calls of SessionService. Each tells on
// stderr what came of it, or what went wrong.
#pragma once

#include <optional>
#include <string>

#include "clients/channel/channel.h"

namespace ovq {

class Sessions {
 public:
  explicit Sessions(const Connection& connection) : connection_(connection) {}

  void Show(const std::string& id) const;
  // A copy, whose id it prints.
  void Fork(const std::string& id) const;
  // True if the session is back at the position.
  bool Rewind(const std::string& id, uint64_t position) const;
  // Into a new file, which does not stay if the call fails.
  void Save(const std::string& id, const std::string& path) const;
  // Makes a session of a file and prints its id.
  void Load(const std::string& path) const;

 private:
  const Connection& connection_;
};

}  // namespace ovq
