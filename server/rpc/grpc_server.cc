#include "server/rpc/grpc_server.h"

#include <grpcpp/health_check_service_interface.h>

#include <utility>

namespace ovq {

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const ListenOptions& options,
                                                              ServiceContext& services) {
  std::unique_ptr<GrpcServer> result(new GrpcServer(services));
  absl::StatusOr<Listener> listener = Listen(options, {&result->inference_, &result->sessions_});
  if (!listener.ok()) return listener.status();
  result->listener_ = *std::move(listener);
  result->SetServing(true);
  return result;
}

GrpcServer::~GrpcServer() {
  if (listener_.server != nullptr) Shutdown(absl::Now());
}

std::shared_ptr<grpc::Channel> GrpcServer::InProcessChannel() {
  return listener_.server->InProcessChannel(grpc::ChannelArguments());
}

void GrpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* health = listener_.server->GetHealthCheckService();
  for (const char* service :
       {"", v1::InferenceService::service_full_name(), v1::SessionService::service_full_name()}) {
    health->SetServingStatus(service, serving);
  }
}

void GrpcServer::Shutdown(absl::Time deadline) {
  listener_.server->Shutdown(absl::ToChronoTime(deadline));
  listener_.server->Wait();
}

}  // namespace ovq
