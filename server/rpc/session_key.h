// How the calls of a session reach the server that has it. Metadata `ovq-session` carries a key
// that the client chose when it made the session; a balancer in front keeps what has the same key
// on one server. The key is the beginning of the session's id, "KEY.RANDOM", so that whoever has
// the id has the key.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "absl/status/statusor.h"

namespace ovq {

// Empty without the metadata. InvalidArgument for what cannot begin an id.
absl::StatusOr<std::string> SessionKeyOf(const grpc::CallbackServerContext& context);

}  // namespace ovq
