// ovq.v1.AdminService and the server of its own that it is on.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "ovq/v1/admin.grpc.pb.h"
#include "server/rpc/grpc_context.h"
#include "server/rpc/grpc_listener.h"

namespace ovq {

using RawAdminService = v1::AdminService::WithRawCallbackMethod_ListSessions<
    v1::AdminService::WithRawCallbackMethod_DeleteSession<
        v1::AdminService::WithRawCallbackMethod_Drain<
            v1::AdminService::WithRawCallbackMethod_GetStatus<v1::AdminService::Service>>>>;

class AdminService final : public RawAdminService {
 public:
  // drain: what a signal would do; may be called more than once, must not block.
  AdminService(ServiceContext& services, std::function<void()> drain)
      : services_(services), drain_(std::move(drain)) {}

  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;

 private:
  ServiceContext& services_;
  const std::function<void()> drain_;
};

// It goes on answering while the other server drains. `services` and the TLS source outlive it.
class AdminServer {
 public:
  static absl::StatusOr<std::unique_ptr<AdminServer>> Start(const ListenOptions& options,
                                                            ServiceContext& services,
                                                            std::function<void()> drain);
  ~AdminServer();
  int port() const { return listener_.port; }

 private:
  AdminServer(ServiceContext& services, std::function<void()> drain)
      : admin_(services, std::move(drain)) {}

  AdminService admin_;
  Listener listener_;
};

}  // namespace ovq
