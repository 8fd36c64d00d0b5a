#include "server/http/response_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "server/http/http_errors.h"
#include "server/http/openai_answer.h"

namespace ovq::server {
namespace {

using Json = nlohmann::json;

}  // namespace

ResponseAnswer::ResponseAnswer(const ResponseRequest& request, std::string id,
                               const std::string& model, const model::Tokenizer* tokenizer,
                               int64_t created)
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

Json ResponseAnswer::Part() const {
  return {{"type", "output_text"},
          {"text", text_},
          {"annotations", Json::array()},
          {"logprobs", logprobs_}};
}

Json ResponseAnswer::Item() const {
  return {{"id", item_id_},
          {"type", "message"},
          {"role", "assistant"},
          {"status", status_},
          {"content", Json::array({Part()})}};
}

Json ResponseAnswer::Response() const {
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

void ResponseAnswer::Append(const char* type, Json event, std::string& out) {
  event["type"] = type;
  event["sequence_number"] = sequence_++;
  absl::StrAppend(&out, "event: ", type, "\n");
  AppendEvent(Dump(event), out);
}

void ResponseAnswer::AppendBegin(std::string& out) {
  Append("response.created", {{"response", Response()}}, out);
  Append("response.in_progress", {{"response", Response()}}, out);
  Json item = Item();
  item["content"] = Json::array();
  Append("response.output_item.added", {{"output_index", 0}, {"item", std::move(item)}}, out);
  Append("response.content_part.added",
         {{"item_id", item_id_}, {"output_index", 0}, {"content_index", 0}, {"part", Part()}}, out);
}

void ResponseAnswer::Add(const engine::StreamEvent& event, std::string& out) {
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
    status_ = event.finished->reason == engine::FinishReason::kLength ? "incomplete" : "completed";
    const int64_t input = position_ + usage.prompt_tokens;
    usage_ = {{"input_tokens", input},
              {"input_tokens_details", {{"cached_tokens", cached_}}},
              {"output_tokens", usage.generated_tokens},
              {"output_tokens_details", {{"reasoning_tokens", 0}}},
              {"total_tokens", input + usage.generated_tokens}};
    state_ = {{"position", usage.position}, {"state_bytes", usage.state_bytes}};
  }
}

void ResponseAnswer::AppendEnd(std::string& out) {
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

void ResponseAnswer::End(const absl::Status& status, std::string& out) {
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

}  // namespace ovq::server
