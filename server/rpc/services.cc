#include "server/rpc/services.h"

#include <memory>
#include <utility>

#include "ovq/v1/inference.grpc.pb.h"
#include "server/calls/handlers.h"
#include "server/rpc/chat_call.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/session_transfer.h"

namespace ovq {

RpcService MakeInferenceService(ServiceContext& services) {
  auto service = std::make_unique<RawService<v1::InferenceService>>(services, Access::kAny);
  service->ServerStream("Generate", &StartGenerate);
  service->BidiStream("Chat", &StartChat);
  service->Unary("Score", &Score);
  service->Unary("ApplyTemplate", &ApplyTemplate);
  service->Unary("Tokenize", &Tokenize);
  service->Unary("Detokenize", &Detokenize);
  service->Unary("GetModelInfo", &GetModelInfo, Lane::kQuick);
  return {v1::InferenceService::service_full_name(), std::move(service)};
}

std::vector<RpcService> ClientServices(ServiceContext& services) {
  std::vector<RpcService> made;
  made.push_back(MakeInferenceService(services));
  made.push_back(MakeSessionService(services));
  return made;
}

RpcService MakeSessionService(ServiceContext& services) {
  // Imports may hold as much as session states: their host memory is not that of a device's states.
  const auto budget = std::make_shared<ImportBudget>(services.engine.options().state_memory_bytes);
  auto service = std::make_unique<RawService<v1::SessionService>>(services, Access::kAny);
  service->Unary("CreateSession", &CreateSession);
  service->Unary("ForkSession", &ForkSession);
  service->Unary("GetSession", &GetSession, Lane::kQuick);
  service->Unary("ListSessions", &ListSessions, Lane::kQuick);
  service->Unary("DeleteSession", &DeleteSession);
  service->Unary("RewindSession", &RewindSession);
  service->ServerStream("ExportSession", &StartExport);
  service->ClientStream(
      "ImportSession", [budget](auto&&... arguments) { return StartImport(budget, arguments...); });
  return {v1::SessionService::service_full_name(), std::move(service)};
}

}  // namespace ovq
