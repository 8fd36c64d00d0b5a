// Connects the C++ clients to a server: plain text or TLS, with or without a token.
#pragma once

#include <google/protobuf/duration.pb.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "clients/common/program.h"

namespace ovq::clients {

absl::Status ToStatus(const grpc::Status& status);
// Converts a gRPC status to one for users: if the error shows a missing or wrong connection flag,
// the message ends with that flag.
absl::Status Explained(const grpc::Status& status, const ConnectOptions& options);
double Seconds(const google::protobuf::Duration& duration);

struct Connection {
  ConnectOptions options;  // the options that the connection was made with
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;  // value of the `authorization` metadata; empty: none is sent

  // Adds the connection's metadata to a call; call it exactly once for each context. The session's
  // key may be empty.
  void Authorize(grpc::ClientContext& context, const std::string& session_key = "") const;
};

// Keys for the metadata field `ovq-session`: a balancer sends calls with equal keys to the same
// server. A new session is created with a new key, which then begins the session's id,
// "KEY.RANDOM".
std::string NewSessionKey();
std::string SessionKeyFromId(std::string_view session_id);  // empty if the id has no key

// The contents of the TLS and token files.
struct Credentials {
  grpc::SslCredentialsOptions tls;
  std::string token;
};

// Reads the files, each once, as they may be pipes. Errors name the flag and the file.
absl::StatusOr<Credentials> ReadCredentials(const ConnectOptions& options);

// Creates a channel, which connects with its first call. With `own_socket` the channel has a socket
// of its own, else it shares one with the process's other channels to the same server.
Connection ConnectWith(const Credentials& credentials, const ConnectOptions& options,
                       bool own_socket = false);

// Does both, for a program with one connection.
absl::StatusOr<Connection> Connect(const ConnectOptions& options);

}  // namespace ovq::clients
