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
  using Service = RawService<v1::InferenceService>;
  using Context = Service::Context;
  using Bytes = Service::Bytes;
  auto service = std::make_unique<Service>(services, Access::kAny);
  service->SetHandler("Generate", new grpc::internal::CallbackServerStreamingHandler<Bytes, Bytes>(
                                      [&services](Context* context, const Bytes* request) {
                                        return StartGenerate(services, context, request);
                                      }));
  service->SetHandler("Chat",
                      new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(
                          [&services](Context* context) { return StartChat(services, context); }));
  service->Unary<v1::ScoreRequest, v1::ScoreResponse>("Score", &Score);
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
  using Service = RawService<v1::SessionService>;
  using Context = Service::Context;
  using Bytes = Service::Bytes;
  // As much as states may have; their memory is not the host's on every device.
  const auto budget = std::make_shared<ImportBudget>(services.engine.options().state_memory_bytes);
  auto service = std::make_unique<Service>(services, Access::kAny);
  service->Unary<v1::CreateSessionRequest, v1::Session>("CreateSession", &CreateSession);
  service->Unary<v1::ForkSessionRequest, v1::ForkSessionResponse>("ForkSession", &ForkSession);
  service->Unary<v1::GetSessionRequest, v1::Session>("GetSession", &GetSession, Lane::kQuick);
  service->Unary("ListSessions", &ListSessions, Lane::kQuick);
  service->Unary("DeleteSession", &DeleteSession);
  service->Unary<v1::RewindSessionRequest, v1::RewindSessionResponse>("RewindSession",
                                                                      &RewindSession);
  service->SetHandler("ExportSession",
                      new grpc::internal::CallbackServerStreamingHandler<Bytes, Bytes>(
                          [&services](Context* context, const Bytes* request) {
                            return StartExport(services, context, request);
                          }));
  service->SetHandler("ImportSession",
                      new grpc::internal::CallbackClientStreamingHandler<Bytes, Bytes>(
                          [&services, budget](Context* context, Bytes* response) {
                            return StartImport(services, budget, context, response);
                          }));
  return {v1::SessionService::service_full_name(), std::move(service)};
}

}  // namespace ovq
