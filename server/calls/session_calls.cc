// Handlers of the unary calls of ovq.v1.SessionService.
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/calls/handlers.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

v1::Session ToProto(const engine::SessionInfo& info) {
  v1::Session session;
  Fill(info, session);
  return session;
}

absl::StatusOr<engine::SessionOptions> ToOptions(CallRecord& call,
                                                 const v1::CreateSessionRequest& message) {
  ASSIGN_OR_RETURN(engine::SessionOptions options, ToSessionOptions(message, call.context()));
  RETURN_IF_ERROR(
      SetPrompt(message.prompt(), {.in_session = true}, call.services().engine, options).status());
  // A prompt may be absent, for an empty session, but not empty.
  if (message.has_prompt() && options.prompt.empty()) return engine::EmptyPrompt("");
  call.SetCaller(options);
  options.cancel = call.cancel();
  return options;
}

// Checks the id of the session that the call is about, and records it.
absl::Status BeginWith(const std::string& session_id, CallRecord& call) {
  RETURN_IF_ERROR(engine::CheckSessionId(session_id, ""));
  call.summary().SetSession(session_id);
  return absl::OkStatus();
}

// Deletes sessions whose ids no client has learned, on a blocking thread: deleting waits for the
// engine.
template <class Response>
void Abandon(CallRecord& call, std::vector<engine::SessionInfo> sessions,
             const UnaryDone<Response>& done) {
  call.services().blocking.Run(call.client(), [&call, sessions = std::move(sessions), done] {
    for (const engine::SessionInfo& session : sessions) {
      (void)call.services().engine.sessions().Delete(session.id, call.caller().tenant);
    }
    done(absl::CancelledError("cancelled by the client"));
  });
}

}  // namespace

void CreateSession(CallRecord& call, const v1::CreateSessionRequest& message,
                   const UnaryDone<v1::Session>& done) {
  absl::StatusOr<engine::SessionOptions> options = ToOptions(call, message);
  if (!options.ok()) return done(options.status());
  const auto answer = [&call, done](absl::StatusOr<engine::SessionInfo> session) {
    if (!session.ok()) return done(session.status());
    if (call.cancel()->cancelled()) return Abandon(call, {*session}, done);
    done(ToProto(*session));
  };
  call.services().engine.sessions().Create(*std::move(options), answer);
}

void ForkSession(CallRecord& call, const v1::ForkSessionRequest& message,
                 const UnaryDone<v1::ForkSessionResponse>& done) {
  if (absl::Status status = BeginWith(message.session_id(), call); !status.ok()) {
    return done(status);
  }
  const auto answer = [&call, done](absl::StatusOr<std::vector<engine::SessionInfo>> copies) {
    if (!copies.ok()) return done(copies.status());
    if (call.cancel()->cancelled()) return Abandon(call, *std::move(copies), done);
    v1::ForkSessionResponse response;
    for (const engine::SessionInfo& copy : *copies) Fill(copy, *response.add_sessions());
    done(std::move(response));
  };
  engine::ForkOptions options = {.session_id = message.session_id(),
                                 .tenant = call.caller().tenant,
                                 .client = call.caller().client};
  if (message.has_count()) options.count = message.count();
  if (message.has_ttl()) options.ttl = ToDuration(message.ttl());
  call.services().engine.sessions().Fork(std::move(options), answer);
}

void RewindSession(CallRecord& call, const v1::RewindSessionRequest& message,
                   const UnaryDone<v1::RewindSessionResponse>& done) {
  if (absl::Status status = BeginWith(message.session_id(), call); !status.ok()) {
    return done(status);
  }
  call.services().engine.sessions().Rewind({.session_id = message.session_id(),
                                            .tenant = call.caller().tenant,
                                            .client = call.caller().client,
                                            .position = message.position(),
                                            .dry_run = message.dry_run(),
                                            .deadline = call.context().deadline()},
                                           call.cancel(),
                                           [done](absl::StatusOr<engine::RewindResult> result) {
                                             if (!result.ok()) return done(result.status());
                                             v1::RewindSessionResponse response;
                                             Fill(result->session, *response.mutable_session());
                                             response.set_replay_tokens(result->replay_tokens);
                                             done(std::move(response));
                                           });
}

void GetSession(CallRecord& call, const v1::GetSessionRequest& message,
                const UnaryDone<v1::Session>& done) {
  const std::string& id = message.session_id();
  if (absl::Status status = BeginWith(id, call); !status.ok()) return done(status);
  call.services().engine.sessions().Get(id, call.caller().tenant,
                                        [done](absl::StatusOr<engine::SessionInfo> session) {
                                          if (!session.ok()) return done(session.status());
                                          done(ToProto(*session));
                                        });
}

absl::StatusOr<v1::ListSessionsResponse> ListSessions(CallRecord& call,
                                                      const v1::ListSessionsRequest& message) {
  ASSIGN_OR_RETURN(
      engine::SessionPage page,
      call.services().engine.sessions().List(
          call.caller().tenant, static_cast<int>(message.page_size()), message.page_token()));
  v1::ListSessionsResponse response;
  for (const engine::SessionInfo& session : page.sessions) Fill(session, *response.add_sessions());
  response.set_next_page_token(page.next_page_token);
  return response;
}

absl::StatusOr<v1::DeleteSessionResponse> DeleteSession(CallRecord& call,
                                                        const v1::DeleteSessionRequest& message) {
  RETURN_IF_ERROR(BeginWith(message.session_id(), call));
  RETURN_IF_ERROR(
      call.services().engine.sessions().Delete(message.session_id(), call.caller().tenant));
  return v1::DeleteSessionResponse();
}

}  // namespace ovq::server
