// How ovq-chat says what went wrong: a line on stderr that begins with its name.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>
#include <string_view>

#include "clients/channel/channel.h"

namespace ovq {

inline constexpr std::string_view kChat = "ovq-chat";

// What names a call that has ended in the server's log; empty if no server answered.
std::string FindRequestId(const grpc::ClientContext& context);

// The exit status of a program that ends for it.
int Complain(std::string_view message);
int Complain(const Connection& connection, const grpc::Status& status,
             const std::string& request_id);

}  // namespace ovq
