// Error messages of ovq-chat: lines on stderr that begin with the program's name.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <string_view>

#include "clients/channel/channel.h"

namespace ovq::clients {

inline constexpr std::string_view kChat = "ovq-chat";

// Returns the id that the server's log has for a finished call; empty if no server answered.
std::string FindRequestId(const grpc::ClientContext& context);

// Complain prints an error and returns the program's exit status.
int Complain(std::string_view message);
int Complain(const Connection& connection, const grpc::Status& status,
             const std::string& request_id);

}  // namespace ovq::clients
