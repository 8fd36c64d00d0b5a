// One address with gRPC services on it, and the limits that hold for whoever connects.
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

namespace ovq {

struct ListenOptions {
  std::string address;            // HOST:PORT; port 0: any
  const char* flag = "--listen";  // that named the address
  size_t max_message_bytes = size_t{16} << 20;
  int max_streams_per_connection = 1024;  // calls at a time; a client holds further ones back
  // From the connection to the client's first HTTP/2 settings, TLS included.
  absl::Duration handshake_timeout = absl::Seconds(10);
  absl::Duration max_connection_idle = absl::InfiniteDuration();  // without a call
  const TlsSource* tls = nullptr;                                 // null: plain text
};

class GrpcServer {
 public:
  // Serves from now on, health and reflection included, and says so to health checks. Unavailable
  // if the address can't be had. What the services stand on and the TLS source outlive it.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const ListenOptions& options,
                                                           std::vector<RpcService> services);
  ~GrpcServer();  // a moment for the last answers

  int port() const { return port_; }
  void SetServing(bool serving);  // what health checks hear
  // Takes no more calls; those still open at the deadline are cancelled. Returns when all ended.
  void Shutdown(absl::Time deadline);

 private:
  explicit GrpcServer(std::vector<RpcService> services) : services_(std::move(services)) {}

  const std::vector<RpcService> services_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // asked at every handshake
  std::unique_ptr<grpc::Server> server_;                  // ends before them
  int port_ = 0;
};

}  // namespace ovq
