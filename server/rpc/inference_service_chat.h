// The Chat call: one bidirectional stream is one live conversation.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/rpc/grpc_context.h"

namespace ovq {

// The reactor ends by itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartChat(
    ServiceContext& services, grpc::CallbackServerContext* context);

}  // namespace ovq
