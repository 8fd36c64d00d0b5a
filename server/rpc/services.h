// The services of ovq.v1 on gRPC's callback API. Requests arrive as bytes: see grpc_codec.h.
#pragma once

#include <grpcpp/impl/codegen/service_type.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/calls/service_context.h"

namespace ovq::server {

struct RpcService {
  std::string name;  // full name, for health checks
  std::unique_ptr<grpc::Service> service;
};

// The inference and the session service. `services` outlives them, as below.
std::vector<RpcService> ClientServices(ServiceContext& services);
// For a server of its own, which goes on answering while the clients' server drains. drain: starts
// the drain, as a signal would; may be called more than once, must not block.
std::vector<RpcService> AdminServices(ServiceContext& services, std::function<void()> drain);

}  // namespace ovq::server
