// Reactors of ExportSession and ImportSession; each deletes itself at its end.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "server/calls/service_context.h"

namespace ovq {

// Memory for all imports together, outside the budget of session states.
struct ImportBudget {
  explicit ImportBudget(size_t most) : most(most) {}
  const size_t most;             // bytes
  std::atomic<size_t> held = 0;  // at most `most`
};

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartExport(ServiceContext& services, const char* label,
                                                        grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request);
grpc::ServerReadReactor<grpc::ByteBuffer>* StartImport(std::shared_ptr<ImportBudget> budget,
                                                       ServiceContext& services, const char* label,
                                                       grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response);

}  // namespace ovq
