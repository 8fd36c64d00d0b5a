// /v1/responses: each stored response has a session, and the next response goes on in a fork of it.
// So the conversation before is not prefilled again, and several responses can go on from one.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/apis/chat_messages.h"
#include "server/apis/generation_call.h"
#include "server/apis/http_handlers.h"
#include "server/apis/response_answer.h"
#include "server/apis/response_request.h"
#include "server/calls/handlers.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

constexpr size_t kKeyDigits = 16;

// Puts two messages of one letter in place of the messages that the session has read already.
// NewText renders the known messages only to cut their text off again, so their content does not
// matter, and neither server nor client has to keep or send them. Where results of tools follow,
// the answer has the calls that they name.
void StandInForKnown(v1::Conversation& conversation) {
  v1::Conversation whole;
  AddMessage("user", "x", whole);
  v1::ChatMessage& answer = AddMessage("assistant", "x", whole);
  for (const v1::ChatMessage& message : conversation.messages()) {
    if (message.role() != "tool") break;
    v1::ToolCall& call = *answer.add_tool_calls();
    call.set_id(message.tool_call_id());
    call.set_name("x");
    answer.clear_content();
  }
  whole.set_known(2);
  whole.MergeFrom(conversation);
  conversation.Swap(&whole);
}

absl::Status NoPrevious() {
  return NoResponse("previous_response_id", "previous_response_not_found");
}

// One POST: gets a session, then generates in it.
class ResponseRun : public std::enable_shared_from_this<ResponseRun> {
 public:
  ResponseRun(HttpCallPtr call, ResponseRequest request)
      : call_(std::move(call)), request_(std::move(request)) {}

  // Checks the instructions and tools against those of the previous response, whose session has
  // read them.
  absl::Status CheckInstructions() {
    if (request_.instructions) digest_ = Digest(*request_.instructions);
    const std::string& tools = request_.message.prompt().conversation().tools_json();
    if (!tools.empty()) tools_digest_ = Digest(tools);
    if (!request_.previous) return absl::OkStatus();
    if (!call_->services().engine.sessions().Get(*request_.previous, call_->caller().tenant).ok()) {
      return NoPrevious();
    }
    const auto previous = call_->responses().Get(*request_.previous);
    if (!tools_digest_.empty() && (!previous || tools_digest_ != previous->tools)) {
      return engine::BadField(
          "tools", "none, or those of the response before, which the model has read", "others");
    }
    if (previous) tools_digest_ = previous->tools;
    if (previous && (!request_.instructions || digest_ == previous->instructions)) {
      digest_ = previous->instructions;
      return absl::OkStatus();
    }
    if (!request_.instructions) return absl::OkStatus();
    return engine::BadField(
        "instructions", "none, or those of the response before, which it goes on with", "others");
  }

  void Start() {
    if (request_.previous) {
      v1::ForkSessionRequest fork;
      fork.set_session_id(*request_.previous);
      return ForkSession(call_->record(), fork, [self = shared_from_this()](auto forked) {
        self->Made(forked.ok() ? absl::StatusOr<v1::Session>(forked->sessions(0))
                               : forked.status());
      });
    }
    if (!request_.store) return Run("");
    // A key for balancers to route by.
    call_->SetSessionKey(UnguessableHex().substr(0, kKeyDigits));
    v1::CreateSessionRequest create;
    create.set_memory(request_.message.memory());
    if (request_.message.has_max_centroids()) {
      create.set_max_centroids(request_.message.max_centroids());
    }
    request_.message.clear_memory();
    request_.message.clear_max_centroids();
    CreateSession(call_->record(), create,
                  [self = shared_from_this()](auto session) { self->Made(std::move(session)); });
  }

 private:
  static std::string Digest(const std::string& text) {
    Sha256 digest;
    digest.AddText(text);
    return digest.Hex();
  }

  // Called on the engine's thread once the session exists.
  void Made(absl::StatusOr<v1::Session> session) {
    call_->services().blocking.Run(call_->client(), [self = shared_from_this(), session] {
      if (session.ok()) {
        if (session->position() > 0) {
          StandInForKnown(*self->request_.message.mutable_prompt()->mutable_conversation());
        }
        return self->Run(session->session_id());
      }
      const bool gone = self->request_.previous && absl::IsNotFound(session.status());
      self->call_->Fail(gone ? NoPrevious() : session.status());
    });
  }

  void Run(const std::string& session_id) {
    if (!session_id.empty()) request_.message.set_session_id(session_id);
    session_id_ = session_id;
    const std::string id =
        ResponseId(request_.store ? session_id : absl::StrCat(UnguessableHex(), "_not_stored"));
    auto answer = std::make_unique<ResponseAnswer>(
        request_, id, call_->services().description.names.front(),
        call_->services().engine.model().tokenizer, absl::ToUnixSeconds(absl::Now()));
    GenerationHooks hooks = {
        .translate_error =
            [](const absl::Status& status) { return ToOpenAiError(status, OpenAiApi::kResponses); },
        .ended = [self = shared_from_this(), &answer = *answer](
                     const absl::Status& status) { return self->Ended(status, answer); }};
    StartGeneration(call_, std::move(answer), request_.message, std::move(hooks));
  }

  absl::Status Ended(const absl::Status& status, const ResponseAnswer& answer) {
    if (session_id_.empty()) return status;
    if (status.ok() && request_.store) {
      call_->responses().Put(session_id_, {Dump(answer.Response()), digest_, tools_digest_});
      return status;
    }
    // NotFound is fine: the session expired or was deleted meanwhile.
    (void)call_->services().engine.sessions().Delete(session_id_, call_->caller().tenant);
    return status;
  }

  const HttpCallPtr call_;
  ResponseRequest request_;
  std::string session_id_;  // empty: one shot
  // Digests of the instructions and of the tools, own or inherited; "" without.
  std::string digest_, tools_digest_;
};

// The session of the stored response that the path names.
absl::StatusOr<std::string> Named(const HttpCallPtr& call, const PathWords& words) {
  const std::optional<std::string> session = ResponseSessionId(words.front());
  if (!session) return NoResponse("response_id", nullptr);
  call->record().summary().SetSession(*session);
  return *session;
}

// The output item of a stored response of the caller's.
absl::StatusOr<Json> StoredItem(HttpCall& call, const std::string& id) {
  const std::optional<ItemPlace> place = FindItemPlace(id);
  const bool exists =
      place && call.services().engine.sessions().Get(place->session_id, call.caller().tenant).ok();
  const auto stored = exists ? call.responses().Get(place->session_id) : std::nullopt;
  if (!stored) return NoResponse("input.id", nullptr);
  constexpr size_t kBytesPerChar = 8;  // as parsed JSON and in the request
  RETURN_IF_ERROR(ReserveBytes(call.record().memory(), kBytesPerChar * stored->json.size()));
  const Json output = Json::parse(stored->json).value("output", Json::array());
  if (place->index >= output.size()) return NoResponse("input.id", nullptr);
  return output[place->index];
}

}  // namespace

absl::Status ServeResponses(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(ResponseRequest request,
                   ReadResponse(body, call->services().description.names,
                                [&call](const std::string& id) { return StoredItem(*call, id); }));
  call->SetSessionKey(request.session_key);
  auto run = std::make_shared<ResponseRun>(call, std::move(request));
  RETURN_IF_ERROR(run->CheckInstructions());
  run->Start();
  return absl::OkStatus();
}

absl::Status ServeResponse(const HttpCallPtr& call, const PathWords& words) {
  ASSIGN_OR_RETURN(const std::string session, Named(call, words));
  const auto answer = [call, id = session](bool found) {
    if (!found) {
      call->responses().Remove(id);
      return call->Fail(NoResponse("response_id", nullptr));
    }
    const auto stored = call->responses().Get(id);
    if (stored) return call->Reply(200, stored->json);
    call->Fail(NotFound("response_id: its text is not kept any more; it can still be continued",
                        "response_id", "text_not_kept"));
  };
  // The engine's thread may call back: the answer is made on another one.
  call->services().engine.sessions().Get(
      session, call->caller().tenant,
      [call, answer](const absl::StatusOr<engine::SessionInfo>& info) {
        call->services().quick.Run(call->client(), [answer, ok = info.ok()] { answer(ok); });
      });
  return absl::OkStatus();
}

absl::Status ServeResponseDelete(const HttpCallPtr& call, const PathWords& words) {
  ASSIGN_OR_RETURN(const std::string session, Named(call, words));
  const absl::Status status =
      call->services().engine.sessions().Delete(session, call->caller().tenant);
  if (absl::IsNotFound(status)) return NoResponse("response_id", nullptr);
  RETURN_IF_ERROR(status);
  call->responses().Remove(session);
  call->Reply(200, Dump({{"id", words.front()}, {"object", "response"}, {"deleted", true}}));
  return absl::OkStatus();
}

}  // namespace ovq::server
