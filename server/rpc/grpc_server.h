// A gRPC server on one address, with limits for its clients.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/access/tls.h"
#include "server/rpc/services.h"

namespace ovq::server {

struct ListenOptions {
  std::string address;            // HOST:PORT; port 0: any
  const char* flag = "--listen";  // that named the address
  size_t max_message_bytes = size_t{16} << 20;
  int max_streams_per_connection = 1024;  // clients hold further calls back
  // From connecting to the client's first HTTP/2 settings, TLS included.
  absl::Duration handshake_timeout = absl::Seconds(10);
  absl::Duration max_connection_idle = absl::InfiniteDuration();  // without a call
  const TlsSource* tls = nullptr;                                 // null: plain text
};

class GrpcServer {
 public:
  // Starts to serve, with health checks (SERVING) and reflection. Unavailable if the address can't
  // be had. The TLS source and all that the services use outlive the server.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const ListenOptions& options,
                                                           std::vector<RpcService> services);
  ~GrpcServer();  // leaves a moment for the last answers

  int port() const { return port_; }
  void SetServing(bool serving);  // for health checks
  // Takes no more calls and cancels those still open at the deadline. Returns when all have ended.
  void Shutdown(absl::Time deadline);

 private:
  explicit GrpcServer(std::vector<RpcService> services) : services_(std::move(services)) {}

  const std::vector<RpcService> services_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // used at every handshake
  std::unique_ptr<grpc::Server> server_;  // ends before its credentials and services
  int port_ = 0;
};

}  // namespace ovq::server
