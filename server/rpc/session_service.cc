// ovq.v1.SessionService.
#include "absl/strings/str_cat.h"
#include "ovq/v1/inference.grpc.pb.h"
#include "server/engine/validate.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/services.h"
#include "server/rpc/session_key.h"

namespace ovq {
namespace {

absl::Status Unimplemented(Method method) {
  return absl::UnimplementedError(
      absl::StrCat(MethodName(method), ": not supported by this server version"));
}

v1::Session ToProto(const SessionInfo& info) {
  v1::Session session;
  Fill(info, session);
  return session;
}

absl::StatusOr<SessionOptions> ToOptions(const UnaryInfo& info,
                                         const v1::CreateSessionRequest& message) {
  absl::StatusOr<std::string> key = SessionKeyOf(info.context);
  if (!key.ok()) return key.status();
  SessionOptions options = ToSessionOptions(message);
  absl::StatusOr<std::vector<int32_t>> prompt =
      PromptTokens(message.prompt(), "", /*at_start=*/true, info.services.engine);
  if (!prompt.ok()) return prompt.status();
  // A prompt that is given must not be empty; without one the session is empty.
  if (message.has_prompt() && prompt->empty()) return EmptyPrompt("");
  options.prompt = *std::move(prompt);
  options.tenant = info.tenant;
  options.key = *std::move(key);
  options.deadline = info.deadline;
  return options;
}

void HandleCreate(const UnaryInfo& info, const v1::CreateSessionRequest& message,
                  const UnaryDone<v1::Session>& done) {
  absl::StatusOr<SessionOptions> options = ToOptions(info, message);
  if (!options.ok()) return done(options.status());
  info.services.engine.CreateSession(*std::move(options),
                                     [info, done](absl::StatusOr<SessionInfo> session) {
                                       if (!session.ok()) return done(session.status());
                                       if (!info.cancel->cancelled())
                                         return done(ToProto(*session));
                                       // Nobody learned its id. Not from the engine's own thread:
                                       // deleting waits for it.
                                       info.services.blocking.Run([info, id = session->id, done] {
                                         (void)info.services.engine.DeleteSession(id, info.tenant);
                                         done(absl::CancelledError("cancelled by the client"));
                                       });
                                     });
}

absl::StatusOr<v1::Session> HandleGet(const UnaryInfo& info, const v1::GetSessionRequest& message) {
  if (absl::Status status = CheckSessionId(message.session_id(), ""); !status.ok()) return status;
  info.summary->SetSession(message.session_id());
  absl::StatusOr<SessionInfo> session =
      info.services.engine.GetSession(message.session_id(), info.tenant);
  if (!session.ok()) return session.status();
  return ToProto(*session);
}

absl::StatusOr<v1::ListSessionsResponse> HandleList(const UnaryInfo& info,
                                                    const v1::ListSessionsRequest& message) {
  absl::StatusOr<SessionPage> page = info.services.engine.ListSessions(
      info.tenant, static_cast<int>(message.page_size()), message.page_token());
  if (!page.ok()) return page.status();
  v1::ListSessionsResponse response;
  for (const SessionInfo& session : page->sessions) Fill(session, *response.add_sessions());
  response.set_next_page_token(page->next_page_token);
  return response;
}

absl::StatusOr<v1::DeleteSessionResponse> HandleDelete(const UnaryInfo& info,
                                                       const v1::DeleteSessionRequest& message) {
  if (absl::Status status = CheckSessionId(message.session_id(), ""); !status.ok()) return status;
  info.summary->SetSession(message.session_id());
  absl::Status status = info.services.engine.DeleteSession(message.session_id(), info.tenant);
  if (!status.ok()) return status;
  return v1::DeleteSessionResponse();
}

template <Method kMethod, class Request>
absl::StatusOr<v1::Session> Refuse(const UnaryInfo&, const Request&) {
  return Unimplemented(kMethod);
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

using RawSessionService = v1::SessionService::WithRawCallbackMethod_CreateSession<
    v1::SessionService::WithRawCallbackMethod_GetSession<
        v1::SessionService::WithRawCallbackMethod_ListSessions<
            v1::SessionService::WithRawCallbackMethod_DeleteSession<
                v1::SessionService::WithRawCallbackMethod_ForkSession<
                    v1::SessionService::WithRawCallbackMethod_RewindSession<
                        v1::SessionService::WithRawCallbackMethod_ExportSession<
                            v1::SessionService::WithRawCallbackMethod_ImportSession<
                                v1::SessionService::Service>>>>>>>>;

class SessionService final : public UnaryService<RawSessionService> {
 public:
  explicit SessionService(ServiceContext& services) : UnaryService(services, Access::kAny) {}

 private:
  Unary* CreateSession(Context* context, const Bytes* request, Bytes* response) override {
    return Start(Method::kCreateSession, context, request, response, &HandleCreate);
  }
  Unary* GetSession(Context* context, const Bytes* request, Bytes* response) override {
    return Start(Method::kGetSession, context, request, response, &HandleGet);
  }
  Unary* ListSessions(Context* context, const Bytes* request, Bytes* response) override {
    return Start(Method::kListSessions, context, request, response, &HandleList);
  }
  Unary* DeleteSession(Context* context, const Bytes* request, Bytes* response) override {
    return Start(Method::kDeleteSession, context, request, response, &HandleDelete);
  }
  Unary* ForkSession(Context* context, const Bytes* request, Bytes* response) override {
    return Start(Method::kForkSession, context, request, response,
                 &Refuse<Method::kForkSession, v1::ForkSessionRequest>);
  }
  Unary* RewindSession(Context* context, const Bytes* request, Bytes* response) override {
    return Start(Method::kRewindSession, context, request, response,
                 &Refuse<Method::kRewindSession, v1::RewindSessionRequest>);
  }
  grpc::ServerWriteReactor<Bytes>* ExportSession(Context* context, const Bytes*) override {
    return new RefusedCall<grpc::ServerWriteReactor<Bytes>>(services_, Method::kExportSession,
                                                            context);
  }
  grpc::ServerReadReactor<Bytes>* ImportSession(Context* context, Bytes*) override {
    return new RefusedCall<grpc::ServerReadReactor<Bytes>>(services_, Method::kImportSession,
                                                           context);
  }
};

}  // namespace

RpcService MakeSessionService(ServiceContext& services) {
  return {v1::SessionService::service_full_name(), std::make_unique<SessionService>(services)};
}

}  // namespace ovq
