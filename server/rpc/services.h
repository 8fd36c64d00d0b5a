// The services of ovq.v1 on gRPC's callback API. Requests come as bytes: see grpc_codec.h.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/calls/service_context.h"

namespace ovq {

struct RpcService {
  std::string name;  // as health checks ask for it
  std::unique_ptr<grpc::Service> service;
};

// `services` outlives what is made.
RpcService MakeInferenceService(ServiceContext& services);
RpcService MakeSessionService(ServiceContext& services);
// The two for clients.
std::vector<RpcService> ClientServices(ServiceContext& services);
// For a server of its own, which goes on answering while the other one drains. drain: what a signal
// would do; may be called more than once, must not block.
std::vector<RpcService> AdminServices(ServiceContext& services, std::function<void()> drain);

}  // namespace ovq
