// The reactors of ExportSession and ImportSession; each ends by itself.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "server/calls/service_context.h"

namespace ovq {

// What imports may hold together, outside the budget of states.
struct ImportBudget {
  explicit ImportBudget(size_t most) : most(most) {}
  const size_t most;             // bytes
  std::atomic<size_t> held = 0;  // never more
};

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartExport(ServiceContext& services, const char* label,
                                                        grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request);
grpc::ServerReadReactor<grpc::ByteBuffer>* StartImport(std::shared_ptr<ImportBudget> budget,
                                                       ServiceContext& services, const char* label,
                                                       grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response);

}  // namespace ovq
