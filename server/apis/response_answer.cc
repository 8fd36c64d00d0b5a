#include "server/apis/response_answer.h"

#include "absl/strings/str_cat.h"
#include "server/apis/chat_answer.h"
#include "server/apis/chat_messages.h"
#include "server/apis/openai_answer.h"
#include "server/http/http_errors.h"

namespace ovq::server {

ResponseAnswer::ResponseAnswer(const ResponseRequest& request, const std::string& id,
                               const std::string& model, const model::Tokenizer* tokenizer,
                               int64_t created)
    : streams_(request.stream),
      tokenizer_(tokenizer),
      session_id_(id.substr(id.find('_') + 1)),
      reasoning_list_(request.summarizes ? "summary" : "content"),
      carries_reasoning_(request.carries_reasoning),
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
    if (streams_) {
      Append("response.created", {{"response", Response()}}, out);
      Append("response.in_progress", {{"response", Response()}}, out);
    }
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
    Json error = ErrorObject(ToOpenAiError(status, {.api = OpenAiApi::kResponses}));
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
    return AppendOfPart("text.delta", std::move(event), out);
  }
  if (part.kind == Kind::kCall) {
    EndItem(out);
    BeginItem("function_call", out);
    SetFunction(part.text);
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
  const bool summary = open_ == "reasoning" && reasoning_list_ == std::string_view("summary");
  Json part = {{"type", summary ? "summary_text" : "reasoning_text"}, {"text", ""}};
  if (open_ == "message") {
    part = {{"type", "output_text"},
            {"text", ""},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
    output_.push_back({{"id", id("msg_")}, {"type", type}, {"role", "assistant"}});
  } else {
    output_.push_back({{"id", id("rs_")}, {"type", type}, {"summary", Json::array()}});
  }
  Json& item = output_.back();
  item["status"] = "in_progress";
  if (!summary) item["content"] = Json::array();
  AppendOfItem("response.output_item.added", {{"item", item}}, out);
  AppendOfPart("part.added", {{"part", part}}, out);
  item[summary ? "summary" : "content"].push_back(std::move(part));
}

void ResponseAnswer::SetFunction(const std::string& name) {
  Json& item = output_.back();
  item["name"] = name;
  for (const Json& space : head_["tools"]) {
    if (!space.is_object() || space.value("type", Json()) != "namespace") continue;
    for (const Json& tool : space.value("tools", Json::array())) {
      const std::string& own = tool["name"].get_ref<const std::string&>();
      if (JoinedName(space["name"].get<std::string>(), own) != name) continue;
      item["name"] = own;
      item["namespace"] = space["name"];
    }
  }
}

void ResponseAnswer::EndItem(std::string& out) {
  if (open_.empty()) return;
  Json& item = output_.back();
  item["status"] = status_ == std::string_view("incomplete") ? "incomplete" : "completed";
  if (open_ == "function_call") {
    AppendOfItem("response.function_call_arguments.done",
                 {{"name", item["name"]}, {"arguments", item["arguments"]}}, out);
  } else {
    const Json part = Part();
    Json done = {{"text", part["text"]}};
    if (part.contains("logprobs")) done["logprobs"] = part["logprobs"];
    AppendOfPart("text.done", std::move(done), out);
    AppendOfPart("part.done", {{"part", part}}, out);
    if (open_ == "reasoning" && carries_reasoning_) {
      item["encrypted_content"] =
          absl::StrCat(std::string(kCarriedReasoning), part["text"].get_ref<const std::string&>());
    }
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

void ResponseAnswer::AppendOfPart(const std::string& what, Json event, std::string& out) {
  const bool reasons = open_ == "reasoning";
  const bool summary = reasons && reasoning_list_ == std::string_view("summary");
  const bool text = what.starts_with("text");
  const char* const prefix = summary   ? "reasoning_summary_"
                             : !text   ? "content_"
                             : reasons ? "reasoning_"
                                       : "output_";
  event[summary ? "summary_index" : "content_index"] = 0;
  AppendOfItem(absl::StrCat("response.", prefix, what).c_str(), std::move(event), out);
}

}  // namespace ovq::server
