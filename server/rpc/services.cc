#include "server/rpc/services.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "ovq/v1/admin.grpc.pb.h"
#include "ovq/v1/inference.grpc.pb.h"
#include "server/calls/convert.h"
#include "server/calls/handlers.h"
#include "server/engine/common/validate.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/stream_call.h"

namespace ovq::server {
namespace {

// --- the admin service: sessions of all tenants, status, drain ---
absl::StatusOr<v1::AdminListSessionsResponse> HandleList(
    CallRecord& call, const v1::AdminListSessionsRequest& message) {
  ASSIGN_OR_RETURN(engine::SessionPage page,
                   call.services().engine.sessions().List(
                       std::nullopt, static_cast<int>(message.page_size()), message.page_token()));
  v1::AdminListSessionsResponse response;
  for (const engine::SessionInfo& session : page.sessions) {
    v1::TenantSession& entry = *response.add_sessions();
    entry.set_tenant(session.tenant);
    Fill(session, *entry.mutable_session());
  }
  response.set_next_page_token(page.next_page_token);
  return response;
}

// Deleting waits for the engine; the few admin threads must stay free for status and drain.
void HandleDelete(CallRecord& call, const v1::AdminDeleteSessionRequest& message,
                  const UnaryDone<v1::AdminDeleteSessionResponse>& done) {
  const std::string& id = message.session_id();
  if (absl::Status status = engine::CheckSessionId(id, ""); !status.ok()) return done(status);
  call.summary().SetSession(id);
  call.services().blocking.Run(call.client(), [&call, id, done] {
    absl::Status status = call.services().engine.sessions().Delete(id, std::nullopt);
    if (!status.ok()) return done(std::move(status));
    done(v1::AdminDeleteSessionResponse());
  });
}

void FillTenant(const engine::TenantUse& from, v1::TenantStatus& to) {
  to.set_name(from.name);
  to.set_sessions(from.sessions);
  to.set_state_bytes(from.state_bytes);
  const engine::TenantLimits& limits = from.limits;
  if (limits.sessions) to.set_sessions_limit(*limits.sessions);
  if (limits.state_bytes) to.set_state_bytes_limit(*limits.state_bytes);
  if (limits.requests_per_second) to.set_requests_per_second_limit(*limits.requests_per_second);
  if (limits.tokens_per_second) to.set_tokens_per_second_limit(*limits.tokens_per_second);
  if (from.requests_left) to.set_requests_left(*from.requests_left);
  if (from.tokens_left) to.set_tokens_left(*from.tokens_left);
}

absl::StatusOr<v1::ServerStatus> HandleStatus(CallRecord& call, const v1::GetStatusRequest&) {
  v1::ServerStatus status = GetServerStatus(call.services());
  for (const engine::TenantUse& use : call.services().engine.quotas().Use())
    FillTenant(use, *status.add_tenants());
  return status;
}

}  // namespace

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

  // Exports may hold as much as session states, and so may imports: their host memory is not that
  // of a device's states.
  const size_t most = services.engine.options().state_memory_bytes;
  const auto exports = std::make_shared<TransferBudget>("exports", most);
  const auto imports = std::make_shared<TransferBudget>("imports", most);
  auto sessions = std::make_unique<RawService<v1::SessionService>>(services, Access::kAny);
  sessions->Unary("CreateSession", &CreateSession);
  sessions->Unary("ForkSession", &ForkSession);
  sessions->Unary("GetSession", &GetSession, Lane::kQuick);
  sessions->Unary("ListSessions", &ListSessions, Lane::kQuick);
  sessions->Unary("DeleteSession", &DeleteSession);
  sessions->Unary("RewindSession", &RewindSession);
  sessions->Stream<CallbackServerStreamingHandler>("ExportSession", [exports](auto&&... arguments) {
    return StartExport(exports, arguments...);
  });
  sessions->Stream<grpc::internal::CallbackClientStreamingHandler>(
      "ImportSession",
      [imports](auto&&... arguments) { return StartImport(imports, arguments...); });

  std::vector<RpcService> made;
  made.push_back({v1::InferenceService::service_full_name(), std::move(inference)});
  made.push_back({v1::SessionService::service_full_name(), std::move(sessions)});
  return made;
}

std::vector<RpcService> AdminServices(ServiceContext& services, std::function<void()> drain) {
  auto service = std::make_unique<RawService<v1::AdminService>>(services, Access::kAdmin);
  service->Unary("ListSessions", &HandleList);
  service->Unary("DeleteSession", &HandleDelete);
  service->Unary("GetStatus", &HandleStatus);
  service->Unary<v1::DrainRequest, v1::DrainResponse>(
      "Drain", [drain = std::move(drain)](auto&, const auto&, const auto& done) {
        drain();
        done(v1::DrainResponse());
      });
  std::vector<RpcService> made;
  made.push_back({v1::AdminService::service_full_name(), std::move(service)});
  return made;
}

}  // namespace ovq::server
