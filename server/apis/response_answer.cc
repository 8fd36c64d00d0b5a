#include "server/apis/response_answer.h"

#include "absl/strings/str_cat.h"
#include "server/apis/chat_answer.h"
#include "server/apis/openai_answer.h"
#include "server/http/http_errors.h"

namespace ovq::server {

ResponseAnswer::ResponseAnswer(const ResponseRequest& request, const std::string& id,
                               const std::string& model, const model::Tokenizer* tokenizer,
                               int64_t created)
    : streams_(request.stream),
      tokenizer_(tokenizer),
      session_id_(id.substr(id.find('_') + 1)),
      head_({{"id", id},
             {"object", "response"},
             {"created_at", created},
             {"model", model},
             {"error", nullptr}}) {
  head_.update(request.shown);
}

void ResponseAnswer::Add(const engine::StreamEvent& event, std::string& out) {
  if (event.started) {
    position_ = event.started->position;
    cached_ = event.started->cached_tokens;
    Append("response.created", {{"response", Response()}}, out);
    Append("response.in_progress", {{"response", Response()}}, out);
  }
  if (event.chunk) {
    AppendChatLogprobs(*event.chunk, tokenizer_, logprobs_);
    for (const answers::AnswerPart& part : event.chunk->parts) AddPart(part, out);
  }
  if (!event.finished) return;
  const engine::Usage& usage = event.finished->usage;
  status_ = event.finished->reason == engine::FinishReason::kLength ? "incomplete" : "completed";
  const int64_t input = position_ + usage.prompt_tokens;
  usage_ = {{"input_tokens", input},
            {"input_tokens_details", {{"cached_tokens", cached_}}},
            {"output_tokens", usage.generated_tokens},
            {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
            {"total_tokens", input + usage.generated_tokens}};
  state_ = {{"position", usage.position}, {"state_bytes", usage.state_bytes}};
  if (output_.empty()) BeginItem("message", out);  // clients expect an item
  EndItem(out);
}

void ResponseAnswer::End(const absl::Status& status, std::string& out) {
  if (!streams_) {
    out += Dump(Response());
  } else if (status.ok()) {
    const bool whole = status_ == std::string_view("completed");
    Append(whole ? "response.completed" : "response.incomplete", {{"response", Response()}}, out);
  } else {
    Json error = ErrorObject(ToOpenAiError(status, OpenAiApi::kResponses));
    for (const char* name : {"code", "message", "param"}) error[name] = error["error"][name];
    Append("error", std::move(error), out);
  }
}

Json ResponseAnswer::Response() const {
  Json response = head_;
  response["status"] = status_;
  response["output"] = output_;
  response["incomplete_details"] = nullptr;
  if (status_ == std::string_view("incomplete")) {
    response["incomplete_details"] = {{"reason", "max_output_tokens"}};
  }
  response["usage"] = usage_;
  response["ovq"] = state_;
  return response;
}

void ResponseAnswer::AddPart(const answers::AnswerPart& part, std::string& out) {
  using Kind = answers::AnswerPart::Kind;
  Json logprobs = std::exchange(logprobs_, Json::array());  // only a message has them
  if (part.kind == Kind::kContent || part.kind == Kind::kReasoning) {
    const bool text = part.kind == Kind::kContent;
    const char* const type = text ? "message" : "reasoning";
    if (open_ != type) {
      EndItem(out);
      BeginItem(type, out);
    }
    Part()["text"].get_ref<std::string&>() += part.text;
    Json event = {{"delta", part.text}};
    if (text) {
      for (const Json& entry : logprobs) Part()["logprobs"].push_back(entry);
      event["logprobs"] = std::move(logprobs);
    }
    return AppendOfPart(text ? "response.output_text.delta" : "response.reasoning_text.delta",
                        std::move(event), out);
  }
  if (part.kind == Kind::kCall) {
    EndItem(out);
    BeginItem("function_call", out);
    output_.back()["name"] = part.text;
    AppendOfItem("response.output_item.added", {{"item", output_.back()}}, out);
  } else if (part.kind == Kind::kArguments) {
    output_.back()["arguments"].get_ref<std::string&>() += part.text;
    AppendOfItem("response.function_call_arguments.delta", {{"delta", part.text}}, out);
  } else {
    EndItem(out);
  }
}

void ResponseAnswer::BeginItem(const char* type, std::string& out) {
  open_ = type;
  const auto id = [&](const char* prefix) {
    return ItemId(prefix, {.session_id = session_id_, .index = output_.size()});
  };
  if (open_ == "function_call") {  // its event comes with its name
    output_.push_back({{"id", id("fc_")},
                       {"type", type},
                       {"status", "in_progress"},
                       {"call_id", NewCallId()},
                       {"name", ""},
                       {"arguments", ""}});
    return;
  }
  Json part = {{"type", "reasoning_text"}, {"text", ""}};
  if (open_ == "message") {
    part = {{"type", "output_text"},
            {"text", ""},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
    output_.push_back({{"id", id("msg_")}, {"type", type}, {"role", "assistant"}});
  } else {
    output_.push_back({{"id", id("rs_")}, {"type", type}, {"summary", Json::array()}});
  }
  output_.back()["status"] = "in_progress";
  output_.back()["content"] = Json::array();
  AppendOfItem("response.output_item.added", {{"item", output_.back()}}, out);
  AppendOfPart("response.content_part.added", {{"part", part}}, out);
  output_.back()["content"].push_back(std::move(part));
}

void ResponseAnswer::EndItem(std::string& out) {
  if (open_.empty()) return;
  Json& item = output_.back();
  item["status"] = status_ == std::string_view("incomplete") ? "incomplete" : "completed";
  if (open_ == "function_call") {
    AppendOfItem("response.function_call_arguments.done",
                 {{"name", item["name"]}, {"arguments", item["arguments"]}}, out);
  } else {
    const bool text = open_ == "message";
    Json done = {{"text", Part()["text"]}};
    if (text) done["logprobs"] = Part()["logprobs"];
    AppendOfPart(text ? "response.output_text.done" : "response.reasoning_text.done",
                 std::move(done), out);
    AppendOfPart("response.content_part.done", {{"part", Part()}}, out);
  }
  AppendOfItem("response.output_item.done", {{"item", item}}, out);
  open_.clear();
}

void ResponseAnswer::Append(const char* type, Json event, std::string& out) {
  if (!streams_) return;
  Json whole = {{"type", type}, {"sequence_number", sequence_++}};
  whole.update(event);
  absl::StrAppend(&out, "event: ", type, "\n");
  AppendEvent(Dump(whole), out);
}

void ResponseAnswer::AppendOfItem(const char* type, Json event, std::string& out) {
  event["output_index"] = output_.size() - 1;
  if (!event.contains("item")) event["item_id"] = output_.back()["id"];
  Append(type, std::move(event), out);
}

void ResponseAnswer::AppendOfPart(const char* type, Json event, std::string& out) {
  event["content_index"] = 0;
  AppendOfItem(type, std::move(event), out);
}

}  // namespace ovq::server
