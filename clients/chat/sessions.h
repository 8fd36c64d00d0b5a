// Session commands of a conversation, as calls of SessionService. Each prints its result or error
// to stderr.
#pragma once

#include <string>

#include "clients/channel/channel.h"

namespace ovq::clients {

void ShowSession(const Connection& connection, const std::string& id);
// Copies the session and prints the copy's id.
void ForkSession(const Connection& connection, const std::string& id);
// Returns true if the session is back at the position.
bool RewindSession(const Connection& connection, const std::string& id, uint64_t position);
// Exports the session to a new file, which is removed if the call fails.
void SaveSession(const Connection& connection, const std::string& id, const std::string& path);
// Creates a session from a file and prints its id.
void LoadSession(const Connection& connection, const std::string& path);

}  // namespace ovq::clients
