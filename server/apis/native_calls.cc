// /ovq/v1: the messages of ovq.v1 in protobuf's JSON mapping, through the handlers of their RPCs.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/calls/generation.h"
#include "server/calls/handlers.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

template <class Response>
absl::Status Answer(const HttpCallPtr& call, const absl::StatusOr<Response>& answer) {
  if (!answer.ok()) return answer.status();
  if constexpr (requires { answer->session_id(); }) {
    call->record().summary().SetSession(answer->session_id());
  }
  call->Reply(200, MessageJson(*answer));
  return absl::OkStatus();
}
template <class Response>
void AnswerOrFail(const HttpCallPtr& call, const absl::StatusOr<Response>& answer) {
  if (const absl::Status status = Answer(call, answer); !status.ok()) call->Fail(status);
}
// Answers on a thread of the queue: `done` may be called on the engine's thread.
template <class Response>
UnaryDone<Response> Later(const HttpCallPtr& call, WorkQueue& queue) {
  return [call, &queue](absl::StatusOr<Response> answer) {
    queue.Run(call->record().client(),
              [call, answer = std::move(answer)] { AnswerOrFail(call, answer); });
  };
}

// Reads the body, and the session id from the path if the path names one.
template <class Message>
absl::Status ReadFor(const HttpCallPtr& call, const PathWords& words, Message& message) {
  absl::Status status = MessageBody(*call, message);
  if (status.ok() && !words.empty()) message.set_session_id(words.front());
  return status;
}

class NativeAnswer final : public AnswerWriter {
 public:
  bool streams() const override { return true; }
  void Add(const engine::StreamEvent& event, std::string& out) override {
    std::deque<v1::GenerateResponse> messages;
    ToMessages(
        event, [&messages]() -> auto& { return messages.emplace_back(); });
    for (const v1::GenerateResponse& message : messages) AppendEvent(MessageJson(message), out);
  }
  void End(const absl::Status& status, std::string& out) override {
    if (!status.ok()) AppendEvent(ErrorBody(status), out);
  }
};

}  // namespace

absl::Status ServeInfo(const HttpCallPtr& call, const PathWords&) {
  v1::GetModelInfoRequest request;
  for (absl::string_view text :
       absl::StrSplit(call->Query("positions").value_or(""), ',', absl::SkipEmpty())) {
    uint64_t position = 0;
    if (!absl::SimpleAtoi(text, &position)) {
      return engine::BadField("positions", "whole numbers with commas between",
                              Quoted(std::string(text)));
    }
    request.add_positions(position);
  }
  ASSIGN_OR_RETURN(const std::optional<uint32_t> cap, call->QueryNumber("max_centroids"));
  if (cap) request.set_max_centroids(*cap);
  request.set_memory(call->Query("memory").value_or(""));
  return Answer(call, GetModelInfo(call->record(), request));
}

absl::Status ServeStatus(const HttpCallPtr& call, const PathWords&) {
  return Answer<v1::ServerStatus>(call, GetServerStatus(call->services()));
}

absl::Status ServeSessions(const HttpCallPtr& call, const PathWords&) {
  v1::ListSessionsRequest request;
  ASSIGN_OR_RETURN(const std::optional<uint32_t> size, call->QueryNumber("page_size"));
  request.set_page_size(size.value_or(0));
  request.set_page_token(call->Query("page_token").value_or(""));
  return Answer(call, ListSessions(call->record(), request));
}

absl::Status ServeCreate(const HttpCallPtr& call, const PathWords&) {
  v1::CreateSessionRequest request;
  RETURN_IF_ERROR(MessageBody(*call, request));
  CreateSession(call->record(), request, Later<v1::Session>(call, call->services().blocking));
  return absl::OkStatus();
}

absl::Status ServeSession(const HttpCallPtr& call, const PathWords& words) {
  v1::GetSessionRequest request;
  request.set_session_id(words.front());
  GetSession(call->record(), request, Later<v1::Session>(call, call->services().quick));
  return absl::OkStatus();
}

absl::Status ServeDelete(const HttpCallPtr& call, const PathWords& words) {
  v1::DeleteSessionRequest request;
  request.set_session_id(words.front());
  return Answer(call, DeleteSession(call->record(), request));
}

absl::Status ServeFork(const HttpCallPtr& call, const PathWords& words) {
  v1::ForkSessionRequest request;
  RETURN_IF_ERROR(ReadFor(call, words, request));
  ForkSession(call->record(), request,
              Later<v1::ForkSessionResponse>(call, call->services().blocking));
  return absl::OkStatus();
}

absl::Status ServeRewind(const HttpCallPtr& call, const PathWords& words) {
  v1::RewindSessionRequest request;
  RETURN_IF_ERROR(ReadFor(call, words, request));
  RewindSession(call->record(), request,
                Later<v1::RewindSessionResponse>(call, call->services().blocking));
  return absl::OkStatus();
}

absl::Status ServeGenerate(const HttpCallPtr& call, const PathWords& words) {
  v1::GenerateRequest request;
  RETURN_IF_ERROR(ReadFor(call, words, request));
  StartGeneration(call, std::make_unique<NativeAnswer>(), request);
  return absl::OkStatus();
}

}  // namespace ovq::server
