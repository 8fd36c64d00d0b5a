// The gRPC server: both services, health, reflection, limits.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/grpc_context.h"
#include "server/inference_service.h"
#include "server/session_service.h"

namespace ovq {

class GrpcServer {
 public:
  // Serves on HOST:PORT from now on, and says so to health checks. Unavailable if the address
  // can't be had. `services` outlives it.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const std::string& address,
                                                           size_t max_message_bytes,
                                                           ServiceContext& services);
  ~GrpcServer();

  int port() const { return port_; }
  std::shared_ptr<grpc::Channel> InProcessChannel();
  void SetServing(bool serving);  // what health checks hear
  // Takes no more calls; those still open at the deadline are cancelled. Returns when all ended.
  void Shutdown(absl::Time deadline);

 private:
  explicit GrpcServer(ServiceContext& services) : inference_(services), sessions_(services) {}

  InferenceService inference_;
  SessionService sessions_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ovq
