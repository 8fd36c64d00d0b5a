// /v1/responses: each stored response has a session, and the next response goes on in a fork of it.
// So the conversation before is not prefilled again, and several responses can go on from one.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/calls/handlers.h"
#include "server/engine/common/error_facts.h"
#include "server/http/generation_call.h"
#include "server/http/http_body.h"
#include "server/http/http_errors.h"
#include "server/http/openai_answer.h"
#include "server/http/openai_request.h"

namespace ovq::server {
namespace {

constexpr const char* kSessionHeader = "ovq-session";
constexpr size_t kKeyDigits = 16;

// Puts two messages of one letter in place of the messages that the session has read already.
// NewText renders the known messages only to cut their text off again, so their content does not
// matter, and neither server nor client has to keep or send them.
void StandInForKnown(v1::Conversation& conversation) {
  v1::Conversation whole;
  for (const char* role : {"user", "assistant"}) {
    v1::ChatMessage& message = *whole.add_messages();
    message.set_role(role);
    message.set_content("x");
  }
  whole.set_known(2);
  whole.MergeFrom(conversation);
  conversation.Swap(&whole);
}

absl::Status NoPrevious() {
  return NoResponse("previous_response_id", "previous_response_not_found");
}

// The answer, whole or as a stream of events.
class ResponseAnswer final : public AnswerWriter {
 public:
  // id: of the response. The tokenizer may be null, and outlives it.
  ResponseAnswer(const ResponseRequest& request, std::string id, const std::string& model,
                 const model::Tokenizer* tokenizer, int64_t created)
      : streams_(request.stream),
        tokenizer_(tokenizer),
        id_(std::move(id)),
        item_id_(absl::StrCat("msg_", UnguessableHex())),
        head_(request.shown) {
    head_["id"] = id_;
    head_["object"] = "response";
    head_["created_at"] = created;
    head_["model"] = model;
    head_["error"] = nullptr;
  }

  bool streams() const override { return streams_; }
  void Add(const engine::StreamEvent& event, std::string& out) override {
    if (event.started) {
      position_ = event.started->position;
      cached_ = event.started->cached_tokens;
      if (streams_) AppendBegin(out);
    }
    if (event.chunk) {
      Json logprobs = Json::array();
      AppendChatLogprobs(*event.chunk, tokenizer_, logprobs);
      text_ += event.chunk->text;
      for (const Json& entry : logprobs) logprobs_.push_back(entry);
      if (streams_) {
        Append("response.output_text.delta",
               {{"item_id", item_id_},
                {"output_index", 0},
                {"content_index", 0},
                {"delta", event.chunk->text},
                {"logprobs", std::move(logprobs)}},
               out);
      }
    }
    if (event.finished) {
      const engine::Usage& usage = event.finished->usage;
      status_ =
          event.finished->reason == engine::FinishReason::kLength ? "incomplete" : "completed";
      const int64_t input = position_ + usage.prompt_tokens;
      usage_ = {{"input_tokens", input},
                {"input_tokens_details", {{"cached_tokens", cached_}}},
                {"output_tokens", usage.generated_tokens},
                {"output_tokens_details", {{"reasoning_tokens", 0}}},
                {"total_tokens", input + usage.generated_tokens}};
      state_ = {{"position", usage.position}, {"state_bytes", usage.state_bytes}};
    }
  }

  void End(const absl::Status& status, std::string& out) override {
    if (!streams_) {
      out += Dump(Response());
    } else if (status.ok()) {
      AppendEnd(out);
    } else {
      Json error = ErrorObject(ToOpenAiError(status, OpenAiApi::kChat));
      for (const char* name : {"code", "message", "param"}) error[name] = error["error"][name];
      Append("error", std::move(error), out);
    }
  }

  // The response so far: complete once Finished was added.
  Json Response() const {
    Json response = head_;
    response["status"] = status_;
    response["output"] = Json::array();
    if (!usage_.is_null()) response["output"].push_back(Item());
    response["incomplete_details"] = nullptr;
    if (status_ == std::string_view("incomplete")) {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    }
    response["usage"] = usage_;
    response["ovq"] = state_;
    return response;
  }

 private:
  void Append(const char* type, Json event, std::string& out) {
    event["type"] = type;
    event["sequence_number"] = sequence_++;
    absl::StrAppend(&out, "event: ", type, "\n");
    AppendEvent(Dump(event), out);
  }

  void AppendBegin(std::string& out) {
    Append("response.created", {{"response", Response()}}, out);
    Append("response.in_progress", {{"response", Response()}}, out);
    Json item = Item();
    item["content"] = Json::array();
    Append("response.output_item.added", {{"output_index", 0}, {"item", std::move(item)}}, out);
    Append("response.content_part.added",
           {{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}, {"part", Part()}},
           out);
  }

  void AppendEnd(std::string& out) {
    const Json place = {{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}};
    Json text = place;
    text["text"] = text_;
    text["logprobs"] = logprobs_;
    Append("response.output_text.done", std::move(text), out);
    Json part = place;
    part["part"] = Part();
    Append("response.content_part.done", std::move(part), out);
    Append("response.output_item.done", {{"output_index", 0}, {"item", Item()}}, out);
    const bool whole = status_ == std::string_view("completed");
    Append(whole ? "response.completed" : "response.incomplete", {{"response", Response()}}, out);
  }

  Json Part() const {  // the text part
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", Json::array()},
            {"logprobs", logprobs_}};
  }

  Json Item() const {  // the message with the text part
    return {{"id", item_id_},
            {"type", "message"},
            {"role", "assistant"},
            {"status", status_},
            {"content", Json::array({Part()})}};
  }

  const bool streams_;
  const model::Tokenizer* const tokenizer_;
  const std::string id_, item_id_;
  Json head_;  // the fields that do not change
  std::string text_;
  Json logprobs_ = Json::array();
  const char* status_ = "in_progress";
  Json usage_, state_;
  int64_t position_ = 0;  // of the session before this response
  int64_t cached_ = 0;
  int64_t sequence_ = 0;  // number of the next event
};

// One POST: gets a session, then generates in it.
class ResponseRun : public std::enable_shared_from_this<ResponseRun> {
 public:
  ResponseRun(HttpCallPtr call, ResponseRequest request)
      : call_(std::move(call)), request_(std::move(request)) {}

  // Checks the instructions against those of the previous response, whose session has read them.
  absl::Status CheckInstructions() {
    if (request_.instructions) {
      Sha256 digest;
      digest.AddText(*request_.instructions);
      digest_ = digest.Hex();
    }
    if (!request_.previous) return absl::OkStatus();
    if (!call_->services().engine.sessions().Get(*request_.previous, call_->caller().tenant).ok()) {
      return NoPrevious();
    }
    const auto previous = call_->responses().Get(*request_.previous);
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
    if (!call_->Value(kSessionHeader)) {
      call_->AddHeader(kSessionHeader, UnguessableHex().substr(0, kKeyDigits));
    }
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
    auto answer = std::make_unique<ResponseAnswer>(request_, id, call_->services().description.name,
                                                   call_->services().engine.model().tokenizer,
                                                   absl::ToUnixSeconds(absl::Now()));
    GenerationHooks hooks = {
        .translate_error =
            [](const absl::Status& status) { return ToOpenAiError(status, OpenAiApi::kChat); },
        .ended = [self = shared_from_this(), &answer = *answer](
                     const absl::Status& status) { return self->Ended(status, answer); }};
    StartGeneration(call_, std::move(answer), request_.message, std::move(hooks));
  }

  absl::Status Ended(const absl::Status& status, const ResponseAnswer& answer) {
    if (session_id_.empty()) return status;
    if (status.ok() && request_.store) {
      call_->responses().Put(session_id_, {Dump(answer.Response()), digest_});
      return status;
    }
    // NotFound is fine: the session expired or was deleted meanwhile.
    (void)call_->services().engine.sessions().Delete(session_id_, call_->caller().tenant);
    return status;
  }

  const HttpCallPtr call_;
  ResponseRequest request_;
  std::string session_id_;  // empty: one shot
  std::string digest_;      // of the instructions, own or inherited; "" without
};

// The session of the stored response that the path names.
absl::StatusOr<std::string> Named(const HttpCallPtr& call, const PathWords& words) {
  const std::optional<std::string> session = ResponseSessionId(words.front());
  if (!session) return NoResponse("response_id", nullptr);
  call->record().summary().SetSession(*session);
  return *session;
}

}  // namespace

absl::Status ServeResponses(const HttpCallPtr& call, const PathWords&) {
  ASSIGN_OR_RETURN(const Json body, JsonBody(*call));
  ASSIGN_OR_RETURN(ResponseRequest request, ReadResponse(body, call->services().description.name));
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
