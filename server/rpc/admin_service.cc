#include "server/rpc/admin_service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_unary.h"

namespace ovq {
namespace {

constexpr uint32_t kDefaultPageSize = 100;
constexpr uint32_t kMaxPageSize = 1000;
constexpr absl::Duration kLastAnswers = absl::Seconds(1);  // at the end

template <class Request, class Response>
using AdminCall = UnaryCall<Request, Response, Access::kAdmin>;

absl::StatusOr<v1::AdminListSessionsResponse> HandleList(
    Engine& engine, const v1::AdminListSessionsRequest& message) {
  if (message.page_size() > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: expected at most ", kMaxPageSize, ", got ", message.page_size()));
  }
  const uint32_t size = message.page_size() == 0 ? kDefaultPageSize : message.page_size();
  absl::StatusOr<Engine::SessionPage> page =
      engine.ListSessionsOfAll(static_cast<int>(size), message.page_token());
  if (!page.ok()) return page.status();
  v1::AdminListSessionsResponse response;
  for (const SessionInfo& session : page->sessions) {
    v1::TenantSession& entry = *response.add_sessions();
    entry.set_tenant(session.tenant);
    Fill(session, *entry.mutable_session());
  }
  response.set_next_page_token(page->next_page_token);
  return response;
}

absl::StatusOr<v1::AdminDeleteSessionResponse> HandleDelete(
    Engine& engine, const UnaryInfo& info, const v1::AdminDeleteSessionRequest& message) {
  if (message.session_id().empty()) {
    return absl::InvalidArgumentError("session_id: expected a session's id, got none");
  }
  info.summary->SetSession(message.session_id());
  absl::Status status = engine.DeleteSessionOfAny(message.session_id());
  if (!status.ok()) return status;
  return v1::AdminDeleteSessionResponse();
}

void Fill(const TenantUse& from, v1::TenantStatus& to) {
  to.set_name(from.name);
  to.set_sessions(static_cast<uint64_t>(from.sessions));
  to.set_state_bytes(from.state_bytes);
  const TenantLimits& limits = from.limits;
  if (limits.sessions) to.set_sessions_limit(static_cast<uint64_t>(*limits.sessions));
  if (limits.state_bytes) to.set_state_bytes_limit(*limits.state_bytes);
  if (limits.requests_per_second) to.set_requests_per_second_limit(*limits.requests_per_second);
  if (limits.tokens_per_second) to.set_tokens_per_second_limit(*limits.tokens_per_second);
  if (from.requests_left) to.set_requests_left(*from.requests_left);
  if (from.tokens_left) to.set_tokens_left(*from.tokens_left);
}

v1::ServerStatus MakeStatus(ServiceContext& services) {
  v1::ServerStatus status;
  status.set_version(OVQ_VERSION);
  status.set_model(services.description.name);
  status.set_draining(services.draining());
  const absl::Time started = services.started;
  status.mutable_started()->set_seconds(absl::ToUnixSeconds(started));
  status.mutable_uptime()->set_seconds(absl::ToInt64Seconds(absl::Now() - started));
  const EngineStats stats = services.engine.Stats();
  const auto count = [](auto value) { return static_cast<uint64_t>(value); };
  status.set_requests_running(count(stats.requests_running));
  status.set_requests_waiting(count(stats.requests_waiting));
  status.set_waiting_prompt_tokens(count(stats.waiting_prompt_tokens));
  status.set_sessions_active(count(stats.sessions_active));
  status.set_sessions_idle(count(stats.sessions_idle));
  status.set_max_sessions(count(services.engine.options().max_sessions));
  status.set_state_bytes_committed(stats.state_bytes_committed);
  status.set_state_bytes_reserved(stats.state_bytes_reserved);
  status.set_state_bytes_budget(stats.state_bytes_budget);
  for (const TenantUse& use : services.engine.quotas().Use()) Fill(use, *status.add_tenants());
  return status;
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::ListSessions(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return new AdminCall<v1::AdminListSessionsRequest, v1::AdminListSessionsResponse>(
      services_, Method::kAdminListSessions, context, request, response,
      [this](const UnaryInfo&, const v1::AdminListSessionsRequest& message, auto done) {
        done(HandleList(services_.engine, message));
      });
}

grpc::ServerUnaryReactor* AdminService::DeleteSession(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return new AdminCall<v1::AdminDeleteSessionRequest, v1::AdminDeleteSessionResponse>(
      services_, Method::kAdminDeleteSession, context, request, response,
      [this](const UnaryInfo& info, const v1::AdminDeleteSessionRequest& message, auto done) {
        done(HandleDelete(services_.engine, info, message));
      });
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const grpc::ByteBuffer* request,
                                              grpc::ByteBuffer* response) {
  return new AdminCall<v1::DrainRequest, v1::DrainResponse>(
      services_, Method::kAdminDrain, context, request, response,
      [this](const UnaryInfo&, const v1::DrainRequest&, auto done) {
        drain_();
        done(v1::DrainResponse());
      });
}

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  return new AdminCall<v1::GetStatusRequest, v1::ServerStatus>(
      services_, Method::kAdminGetStatus, context, request, response,
      [this](const UnaryInfo&, const v1::GetStatusRequest&, auto done) {
        done(MakeStatus(services_));
      });
}

absl::StatusOr<std::unique_ptr<AdminServer>> AdminServer::Start(const ListenOptions& options,
                                                                ServiceContext& services,
                                                                std::function<void()> drain) {
  std::unique_ptr<AdminServer> result(new AdminServer(services, std::move(drain)));
  absl::StatusOr<Listener> listener = Listen(options, {&result->admin_});
  if (!listener.ok()) return listener.status();
  result->listener_ = *std::move(listener);
  return result;
}

AdminServer::~AdminServer() {
  if (listener_.server == nullptr) return;
  listener_.server->Shutdown(absl::ToChronoTime(absl::Now() + kLastAnswers));
  listener_.server->Wait();
}

}  // namespace ovq
