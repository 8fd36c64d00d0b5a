// The gRPC server for clients: both services, health, reflection.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/rpc/grpc_context.h"
#include "server/rpc/grpc_listener.h"
#include "server/rpc/inference_service.h"
#include "server/rpc/session_service.h"

namespace ovq {

class GrpcServer {
 public:
  // Serves from now on, and says so to health checks. Unavailable if the address can't be had.
  // `services` and the TLS source outlive it.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const ListenOptions& options,
                                                           ServiceContext& services);
  ~GrpcServer();

  int port() const { return listener_.port; }
  std::shared_ptr<grpc::Channel> InProcessChannel();
  void SetServing(bool serving);  // what health checks hear
  // Takes no more calls; those still open at the deadline are cancelled. Returns when all ended.
  void Shutdown(absl::Time deadline);

 private:
  explicit GrpcServer(ServiceContext& services) : inference_(services), sessions_(services) {}

  InferenceService inference_;
  SessionService sessions_;
  Listener listener_;
};

}  // namespace ovq
