// How a client connects: plain text or TLS, with a token or without.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "clients/common/connect_options.h"

namespace ovq {

absl::Status ToStatus(const grpc::Status& status);
// The same for people: where the status shows what is wrong with how the server was called, its
// message ends with the flag that is missing or wrong.
absl::Status Explained(const grpc::Status& status, const ConnectOptions& options);
double Seconds(const google::protobuf::Duration& duration);

struct Connection {
  ConnectOptions options;  // that it was made by
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;  // the metadata of that name; empty: none

  // To be called once for every call. The session's key may be empty.
  void Authorize(grpc::ClientContext& context, const std::string& session_key = "") const;
};

// Metadata `ovq-session`: what has the same key reaches the same server through a balancer. A new
// session is made with a new key, which then begins the session's id, "KEY.RANDOM".
std::string NewSessionKey();
std::string SessionKeyFromId(std::string_view session_id);  // empty for one that was made without

// Reads the files; connects with the first call, on a socket of its own or on one that it shares
// with the process's other channels to the server. Errors name the flag and the file.
absl::StatusOr<Connection> Connect(const ConnectOptions& options, bool own_socket = false);

}  // namespace ovq
