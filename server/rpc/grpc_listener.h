// One address with gRPC services on it, and the limits that hold for whoever connects.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/access/tls_credentials.h"

namespace ovq {

struct ListenOptions {
  std::string address;            // HOST:PORT; port 0: any
  const char* flag = "--listen";  // that named the address
  size_t max_message_bytes = size_t{64} << 20;
  int max_streams_per_connection = 1024;  // calls at a time; a client holds further ones back
  // From the connection to the client's first HTTP/2 settings, TLS included.
  absl::Duration handshake_timeout = absl::Seconds(10);
  absl::Duration max_connection_idle = absl::InfiniteDuration();  // without a call
  const TlsSource* tls = nullptr;                                 // null: plain text
};

struct Listener {
  std::shared_ptr<grpc::ServerCredentials> credentials;  // asked at every handshake
  std::unique_ptr<grpc::Server> server;                  // ends before them
  int port = 0;
};

// Serves from now on, health and reflection included. Unavailable if the address can't be had.
absl::StatusOr<Listener> Listen(const ListenOptions& options,
                                const std::vector<grpc::Service*>& services);

}  // namespace ovq
