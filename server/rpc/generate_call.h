// The Generate call: one request, its events streamed as they come.
#pragma once

#include <grpcpp/grpcpp.h>

#include "server/rpc/grpc_context.h"

namespace ovq {

// The reactor ends by itself.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartGenerate(ServiceContext& services,
                                                          grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request);

}  // namespace ovq
