// Names of the keys that redis_scripts.h describes, and commands that run its scripts.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/redis/redis_connection.h"

namespace ovq::redis {

inline constexpr char kSessionsKey[] = "ovq:sessions";
inline std::string SessionKey(const std::string& id) { return absl::StrCat("ovq:session:", id); }
inline std::string JournalKey(const std::string& id) { return absl::StrCat("ovq:journal:", id); }
inline std::string TextKey(const std::string& id) { return absl::StrCat("ovq:text:", id); }
inline std::string AskedKey(const std::string& id) { return absl::StrCat("ovq:asked:", id); }
inline std::string AsksKey(const std::string& server) { return absl::StrCat("ovq:asks:", server); }
inline std::string LeaseKey(const std::string& server) {
  return absl::StrCat("ovq:lease:", server);
}

// The command of a script, with the keys that scripts see, and ARGV[1] and further arguments.
inline Command ScriptCommand(const char* script, const std::string& server, const std::string& id,
                             const std::vector<std::string>& arguments) {
  Command command = {"EVAL",         script,      "6",          SessionKey(id), LeaseKey(server),
                     JournalKey(id), TextKey(id), kSessionsKey, AskedKey(id),   server};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace ovq::redis
