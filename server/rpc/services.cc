#include "server/rpc/services.h"

#include <memory>
#include <utility>

#include "ovq/v1/inference.grpc.pb.h"
#include "server/calls/handlers.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/stream_call.h"

namespace ovq::server {

std::vector<RpcService> ClientServices(ServiceContext& services) {
  using grpc::internal::CallbackServerStreamingHandler;
  auto inference = std::make_unique<RawService<v1::InferenceService>>(services, Access::kAny);
  inference->Stream<CallbackServerStreamingHandler>("Generate", &StartGenerate);
  inference->Stream<grpc::internal::CallbackBidiHandler>("Chat", &StartChat);
  inference->Unary("Score", &Score);
  inference->Unary("ApplyTemplate", &ApplyTemplate);
  inference->Unary("Tokenize", &Tokenize);
  inference->Unary("Detokenize", &Detokenize);
  inference->Unary("GetModelInfo", &GetModelInfo, Lane::kQuick);

  // Imports may hold as much as session states: their host memory is not that of a device's states.
  const auto budget = std::make_shared<ImportBudget>(services.engine.options().state_memory_bytes);
  auto sessions = std::make_unique<RawService<v1::SessionService>>(services, Access::kAny);
  sessions->Unary("CreateSession", &CreateSession);
  sessions->Unary("ForkSession", &ForkSession);
  sessions->Unary("GetSession", &GetSession, Lane::kQuick);
  sessions->Unary("ListSessions", &ListSessions, Lane::kQuick);
  sessions->Unary("DeleteSession", &DeleteSession);
  sessions->Unary("RewindSession", &RewindSession);
  sessions->Stream<CallbackServerStreamingHandler>("ExportSession", &StartExport);
  sessions->Stream<grpc::internal::CallbackClientStreamingHandler>(
      "ImportSession", [budget](auto&&... arguments) { return StartImport(budget, arguments...); });

  std::vector<RpcService> made;
  made.push_back({v1::InferenceService::service_full_name(), std::move(inference)});
  made.push_back({v1::SessionService::service_full_name(), std::move(sessions)});
  return made;
}

}  // namespace ovq::server
