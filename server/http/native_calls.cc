// /ovq/v1: the messages of ovq.v1 in protobuf's JSON mapping, through the handlers of their RPCs.
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "server/calls/generation.h"
#include "server/calls/handlers.h"
#include "server/engine/common/error_facts.h"
#include "server/http/generation_call.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"
#include "server/http/http_handlers.h"
#include "server/http/message_json.h"

namespace ovq {
namespace {

using Call = std::shared_ptr<HttpCall>;
using PathWords = std::vector<std::string>;

template <class Response>
void Answer(const Call& call, const absl::StatusOr<Response>& answer) {
  if (!answer.ok()) return call->Fail(answer.status());
  if constexpr (requires { answer->session_id(); }) {
    call->record().summary().SetSession(answer->session_id());
  }
  call->Reply(200, MessageJson(*answer));
}
// Answers on a thread of the queue: `done` may be called on the engine's thread.
template <class Response>
UnaryDone<Response> Later(const Call& call, WorkQueue& queue) {
  return [call, &queue](absl::StatusOr<Response> answer) {
    queue.Run(call->client(), [call, answer = std::move(answer)] { Answer(call, answer); });
  };
}

// Reads a number of the query into `to`, if it is given.
absl::Status ReadQuery(const HttpCall& call, const char* name, uint32_t& to,
                       bool* given = nullptr) {
  const std::optional<std::string> text = call.Query(name);
  if (!text) return absl::OkStatus();
  if (given != nullptr) *given = true;
  if (absl::SimpleAtoi(*text, &to)) return absl::OkStatus();
  return BadField(name, "a whole number", Quoted(*text));
}

// Reads the body, and the session id from the path if the path names one.
template <class Message>
absl::Status ReadFor(const Call& call, const PathWords& words, Message& message) {
  absl::Status status = MessageBody(*call, message);
  if (status.ok() && !words.empty()) message.set_session_id(words.front());
  return status;
}

class NativeAnswer final : public AnswerWriter {
 public:
  bool streams() const override { return true; }
  void Add(const StreamEvent& event, std::string& out) override {
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

void ServeInfo(const Call& call, const PathWords&) {
  v1::GetModelInfoRequest request;
  for (absl::string_view text :
       absl::StrSplit(call->Query("positions").value_or(""), ',', absl::SkipEmpty())) {
    uint64_t position = 0;
    if (!absl::SimpleAtoi(text, &position)) {
      return call->Fail(
          BadField("positions", "whole numbers with commas between", Quoted(std::string(text))));
    }
    request.add_positions(position);
  }
  uint32_t cap = 0;
  bool given = false;
  if (auto status = ReadQuery(*call, "max_centroids", cap, &given); !status.ok()) {
    return call->Fail(status);
  }
  if (given) request.set_max_centroids(cap);
  request.set_memory(call->Query("memory").value_or(""));
  Answer(call, GetModelInfo(call->ForHandler(), request));
}

void ServeStatus(const Call& call, const PathWords&) {
  Answer<v1::ServerStatus>(call, GetServerStatus(call->services()));
}

void ServeSessions(const Call& call, const PathWords&) {
  v1::ListSessionsRequest request;
  uint32_t size = 0;
  if (auto status = ReadQuery(*call, "page_size", size); !status.ok()) return call->Fail(status);
  request.set_page_size(size);
  request.set_page_token(call->Query("page_token").value_or(""));
  Answer(call, ListSessions(call->ForHandler(), request));
}

void ServeCreate(const Call& call, const PathWords&) {
  v1::CreateSessionRequest request;
  if (auto status = MessageBody(*call, request); !status.ok()) return call->Fail(status);
  CreateSession(call->ForHandler(), request, Later<v1::Session>(call, call->services().blocking));
}

void ServeSession(const Call& call, const PathWords& words) {
  v1::GetSessionRequest request;
  request.set_session_id(words.front());
  GetSession(call->ForHandler(), request, Later<v1::Session>(call, call->services().quick));
}

void ServeDelete(const Call& call, const PathWords& words) {
  v1::DeleteSessionRequest request;
  request.set_session_id(words.front());
  Answer(call, DeleteSession(call->ForHandler(), request));
}

void ServeFork(const Call& call, const PathWords& words) {
  v1::ForkSessionRequest request;
  if (auto status = ReadFor(call, words, request); !status.ok()) return call->Fail(status);
  ForkSession(call->ForHandler(), request,
              Later<v1::ForkSessionResponse>(call, call->services().blocking));
}

void ServeRewind(const Call& call, const PathWords& words) {
  v1::RewindSessionRequest request;
  if (auto status = ReadFor(call, words, request); !status.ok()) return call->Fail(status);
  RewindSession(call->ForHandler(), request,
                Later<v1::RewindSessionResponse>(call, call->services().blocking));
}

void ServeGenerate(const Call& call, const PathWords& words) {
  v1::GenerateRequest request;
  if (auto status = ReadFor(call, words, request); !status.ok()) return call->Fail(status);
  std::make_shared<GenerationCall>(call, std::make_unique<NativeAnswer>(), GenerationCall::Hooks{})
      ->Start(request);
}

}  // namespace ovq
