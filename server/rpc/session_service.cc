#include "server/rpc/session_service.h"

#include "absl/strings/str_cat.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/session_key.h"

namespace ovq {
namespace {

constexpr uint32_t kDefaultPageSize = 100;
constexpr uint32_t kMaxPageSize = 1000;

absl::Status CheckSessionId(const std::string& id) {
  if (!id.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("session_id: expected a session's id, got none");
}

absl::Status Unimplemented(Method method) {
  return absl::UnimplementedError(
      absl::StrCat(MethodName(method), ": not supported by this server version"));
}

absl::StatusOr<SessionOptions> ToSessionOptions(const v1::CreateSessionRequest& from,
                                                const RequestLimits& limits) {
  SessionOptions to;
  if (from.has_max_centroids()) {
    absl::StatusOr<int32_t> cap = ToSlotCap(from.max_centroids(), "", limits);
    if (!cap.ok()) return cap.status();
    to.slot_cap = *cap;
  }
  if (from.has_ttl()) {
    absl::StatusOr<absl::Duration> ttl = ToTtl(from.ttl(), "");
    if (!ttl.ok()) return ttl.status();
    to.ttl = *ttl;
  }
  absl::StatusOr<std::vector<int32_t>> prompt =
      PromptTokens(from.prompt(), "", /*at_start=*/true, limits);
  if (!prompt.ok()) return prompt.status();
  to.prompt = *std::move(prompt);
  // A prompt that is there must say something; no prompt makes an empty session.
  if (from.has_prompt()) {
    if (absl::Status status = CheckNotEmpty(to.prompt, ""); !status.ok()) return status;
  }
  return to;
}

v1::Session ToProto(const SessionInfo& info) {
  v1::Session session;
  Fill(info, session);
  return session;
}

void HandleCreate(ServiceContext& services, const UnaryInfo& info, absl::StatusOr<std::string> key,
                  const v1::CreateSessionRequest& message, UnaryDone<v1::Session> done) {
  if (!key.ok()) return done(key.status());
  absl::StatusOr<SessionOptions> options =
      ToSessionOptions(message, RequestLimits::Of(services.engine));
  if (!options.ok()) return done(options.status());
  options->tenant = info.tenant;
  options->key = *std::move(key);
  options->deadline = info.deadline;
  services.engine.CreateSession(*std::move(options), [&services, info, done = std::move(done)](
                                                         absl::StatusOr<SessionInfo> session) {
    if (!session.ok()) return done(session.status());
    if (!*info.cancelled) return done(ToProto(*session));
    // Nobody learned its id. Not from the engine's own thread: deleting waits for it.
    services.blocking.Run([&services, id = session->id, tenant = info.tenant, done] {
      (void)services.engine.DeleteSession(id, tenant);
      done(absl::CancelledError("cancelled by the client"));
    });
  });
}

absl::StatusOr<v1::Session> HandleGet(ServiceContext& services, const UnaryInfo& info,
                                      const v1::GetSessionRequest& message) {
  if (absl::Status status = CheckSessionId(message.session_id()); !status.ok()) return status;
  info.summary->SetSession(message.session_id());
  absl::StatusOr<SessionInfo> session =
      services.engine.GetSession(message.session_id(), info.tenant);
  if (!session.ok()) return session.status();
  return ToProto(*session);
}

absl::StatusOr<v1::ListSessionsResponse> HandleList(ServiceContext& services, const UnaryInfo& info,
                                                    const v1::ListSessionsRequest& message) {
  if (message.page_size() > kMaxPageSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size: expected at most ", kMaxPageSize, ", got ", message.page_size()));
  }
  const uint32_t size = message.page_size() == 0 ? kDefaultPageSize : message.page_size();
  absl::StatusOr<Engine::SessionPage> page =
      services.engine.ListSessions(info.tenant, static_cast<int>(size), message.page_token());
  if (!page.ok()) return page.status();
  v1::ListSessionsResponse response;
  for (const SessionInfo& session : page->sessions) Fill(session, *response.add_sessions());
  response.set_next_page_token(page->next_page_token);
  return response;
}

absl::StatusOr<v1::DeleteSessionResponse> HandleDelete(ServiceContext& services,
                                                       const UnaryInfo& info,
                                                       const v1::DeleteSessionRequest& message) {
  if (absl::Status status = CheckSessionId(message.session_id()); !status.ok()) return status;
  info.summary->SetSession(message.session_id());
  absl::Status status = services.engine.DeleteSession(message.session_id(), info.tenant);
  if (!status.ok()) return status;
  return v1::DeleteSessionResponse();
}

// A stream that ends with a status before any message.
template <class Reactor>
class RefusedCall final : public Reactor {
 public:
  RefusedCall(ServiceContext& services, Method method, grpc::CallbackServerContext* context) {
    CallRecord record(services, method, context);
    const absl::StatusOr<Caller> caller = services.auth.Authenticate(*context);
    if (caller.ok()) record.summary().tenant = caller->tenant;
    this->Finish(record.End(caller.ok() ? Unimplemented(method) : caller.status()));
  }
  void OnDone() override { delete this; }
};

template <class Request>
grpc::ServerUnaryReactor* RefuseUnary(ServiceContext& services, Method method,
                                      grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  return new UnaryCall<Request, v1::Session>(
      services, method, context, request, response,
      [method](const UnaryInfo&, const Request&, auto done) { done(Unimplemented(method)); });
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::CreateSession(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return new UnaryCall<v1::CreateSessionRequest, v1::Session>(
      services_, Method::kCreateSession, context, request, response,
      [this, context](const UnaryInfo& info, const v1::CreateSessionRequest& message, auto done) {
        HandleCreate(services_, info, SessionKeyOf(*context), message, std::move(done));
      });
}

grpc::ServerUnaryReactor* SessionService::GetSession(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return new UnaryCall<v1::GetSessionRequest, v1::Session>(
      services_, Method::kGetSession, context, request, response,
      [this](const UnaryInfo& info, const v1::GetSessionRequest& message, auto done) {
        done(HandleGet(services_, info, message));
      });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return new UnaryCall<v1::ListSessionsRequest, v1::ListSessionsResponse>(
      services_, Method::kListSessions, context, request, response,
      [this](const UnaryInfo& info, const v1::ListSessionsRequest& message, auto done) {
        done(HandleList(services_, info, message));
      });
}

grpc::ServerUnaryReactor* SessionService::DeleteSession(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return new UnaryCall<v1::DeleteSessionRequest, v1::DeleteSessionResponse>(
      services_, Method::kDeleteSession, context, request, response,
      [this](const UnaryInfo& info, const v1::DeleteSessionRequest& message, auto done) {
        done(HandleDelete(services_, info, message));
      });
}

grpc::ServerUnaryReactor* SessionService::ForkSession(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  return RefuseUnary<v1::ForkSessionRequest>(services_, Method::kForkSession, context, request,
                                             response);
}

grpc::ServerUnaryReactor* SessionService::RewindSession(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  return RefuseUnary<v1::RewindSessionRequest>(services_, Method::kRewindSession, context, request,
                                               response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SessionService::ExportSession(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer*) {
  return new RefusedCall<grpc::ServerWriteReactor<grpc::ByteBuffer>>(
      services_, Method::kExportSession, context);
}

grpc::ServerReadReactor<grpc::ByteBuffer>* SessionService::ImportSession(
    grpc::CallbackServerContext* context, grpc::ByteBuffer*) {
  return new RefusedCall<grpc::ServerReadReactor<grpc::ByteBuffer>>(
      services_, Method::kImportSession, context);
}

}  // namespace ovq
