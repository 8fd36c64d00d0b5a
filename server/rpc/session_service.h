// ovq.v1.SessionService on gRPC's callback API. Requests come as bytes: see grpc_codec.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include "ovq/v1/inference.grpc.pb.h"
#include "server/rpc/grpc_context.h"

namespace ovq {

using RawSessionService = v1::SessionService::WithRawCallbackMethod_CreateSession<
    v1::SessionService::WithRawCallbackMethod_GetSession<
        v1::SessionService::WithRawCallbackMethod_ListSessions<
            v1::SessionService::WithRawCallbackMethod_DeleteSession<
                v1::SessionService::WithRawCallbackMethod_ForkSession<
                    v1::SessionService::WithRawCallbackMethod_RewindSession<
                        v1::SessionService::WithRawCallbackMethod_ExportSession<
                            v1::SessionService::WithRawCallbackMethod_ImportSession<
                                v1::SessionService::Service>>>>>>>>;

class SessionService final : public RawSessionService {
 public:
  explicit SessionService(ServiceContext& services) : services_(services) {}

  grpc::ServerUnaryReactor* CreateSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ListSessions(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* DeleteSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ForkSession(grpc::CallbackServerContext* context,
                                        const grpc::ByteBuffer* request,
                                        grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* RewindSession(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* ExportSession(
      grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* ImportSession(grpc::CallbackServerContext* context,
                                                           grpc::ByteBuffer* response) override;

 private:
  ServiceContext& services_;
};

}  // namespace ovq
