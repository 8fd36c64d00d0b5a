// Connections to a server: plain or TLS, with a bearer token or without.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/load/options.h"

namespace ovq::load {

struct Connections {
  std::vector<std::shared_ptr<grpc::Channel>> channels;  // each with a TCP connection of its own
  std::string authorization;  // the metadata of that name for every call; empty: none
};

// Reads the files that the options name; connects with the first call. InvalidArgument names the
// flag and the file.
absl::StatusOr<Connections> Connect(const ConnectOptions& options);

}  // namespace ovq::load
