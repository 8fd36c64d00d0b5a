#include "server/apis/response_request.h"

#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/apis/chat_messages.h"
#include "server/apis/constraint_fields.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/session.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";

// Reads the items of `input` one by one into messages. An answer of a model is one message: its
// reasoning, text and calls are items of their own.
class ItemReader {
 public:
  // places: of to's messages, those that are there included.
  ItemReader(BodyFields& fields, const FindItem& find, v1::Conversation& to,
             std::vector<MessagePlace>& places)
      : fields_(fields), find_(find), to_(to), places_(places) {}

  void Read(const std::string& path, const Json& item) {
    ReadItem(path, item);
    const auto n_messages = static_cast<size_t>(to_.messages_size());
    if (places_.size() < n_messages) places_.resize(n_messages, {.field = path});
    if (n_messages == 0) return;
    const auto n_calls = static_cast<size_t>(to_.messages().rbegin()->tool_calls_size());
    if (places_.back().calls.size() < n_calls) places_.back().calls.resize(n_calls, path);
  }

 private:
  void ReadItem(const std::string& path, const Json& item) {
    if (!item.is_object()) return fields_.Expected(path, "an object with type or role", item);
    const Json given = item.value("type", Json());
    const std::string type = given.is_string() ? given.get<std::string>() : "message";
    BodyFields inner(item, absl::StrCat(fields_.Path(path), "."));
    for (const char* name : {"type", "id", "status", "caller"}) inner.Skip(name);
    if (type == "item_reference") return Refer(path, inner);
    if (type == "message") {
      Message(inner);
    } else if (type == "agent_message") {
      AgentMessage(inner);
    } else if (type == "reasoning") {
      Reasoning(inner);
    } else if (type == "function_call") {
      Call(inner);
    } else if (type == "function_call_output") {
      Output(inner);
    } else {
      const std::string name = IsName(type) ? type : "another";
      return fields_.Fail(engine::BadField(
          absl::StrCat(fields_.Path(path), ".type"),
          "message, agent_message, reasoning, function_call, function_call_output or "
          "item_reference",
          name));
    }
    fields_.Fail(inner.Finish());
  }

  // The message of the answer that goes on, or a new one.
  v1::ChatMessage& Answer(bool has_text) {
    const int n = to_.messages_size();
    const bool goes_on =
        n > 0 && to_.messages(n - 1).role() == "assistant" && reasoning_.empty() && !has_text;
    v1::ChatMessage& answer =
        goes_on ? *to_.mutable_messages(n - 1) : AddMessage("assistant", "", to_);
    if (!goes_on) answer.set_reasoning(std::exchange(reasoning_, ""));
    return answer;
  }

  void Message(BodyFields& inner) {
    const std::string role = inner.Text("role").value_or("");
    std::string text;
    if (const Json* content = inner.Any("content")) text = ReadContent(inner, "content", *content);
    for (const char* name : {"phase", "timestamp"}) inner.Skip(name);
    if (role == "assistant") return Answer(/*has_text=*/true).set_content(text);
    AddMessage(role.c_str(), text, to_);
  }

  // A message between agents of Codex is one of the user's to the model.
  void AgentMessage(BodyFields& inner) {
    const std::string author = inner.Text("author").value_or("");
    inner.Skip("recipient");  // the agent that sends the request
    const Json* const content = inner.Any("content");
    if (content == nullptr)
      return inner.Fail(engine::BadField(inner.Path("content"), "a text", "none"));
    for (size_t i = 0; content->is_array() && i < content->size(); ++i) {
      const Json& part = (*content)[i];
      if (!part.is_object() || part.value("type", Json()) != "encrypted_content") continue;
      // Only OpenAI's service can read it.
      return inner.Fail(Unsupported(inner.Path(absl::StrCat("content[", i, "]")),
                                    "a part of type input_text, got encrypted_content"));
    }
    const std::string text = ReadContent(inner, "content", *content);
    AddMessage("user", author.empty() ? text : absl::StrCat("From ", author, ":\n", text), to_);
  }

  void Reasoning(BodyFields& inner) {
    const std::string sealed = inner.Text("encrypted_content").value_or("");
    const Json* const summary = inner.Any("summary");
    const Json* const content = inner.Any("content");
    for (const Json* list : {content, summary}) {
      if (list == nullptr || !reasoning_.empty()) continue;
      if (!list->is_array()) return inner.Expected("content", "a list of texts", *list);
      for (const Json& part : *list) {
        const Json text = part.is_object() ? part.value("text", Json()) : Json();
        if (!text.is_string()) return inner.Expected("content", "a list of texts", part);
        reasoning_ += text.get_ref<const std::string&>();
      }
    }
    // Only OpenAI's service can read another.
    if (reasoning_.empty() && sealed.starts_with(kCarriedReasoning)) {
      reasoning_ = sealed.substr(kCarriedReasoning.size());
    }
  }

  void Call(BodyFields& inner) {
    v1::ToolCall& call = *Answer(/*has_text=*/false).add_tool_calls();
    call.set_id(inner.Text("call_id").value_or(""));
    call.set_name(
        JoinedName(inner.Text("namespace").value_or(""), inner.Text("name").value_or("")));
    inner.Skip("parsed_arguments");  // of the package openai
    call.set_arguments_json(inner.Text("arguments").value_or("{}"));
  }

  void Output(BodyFields& inner) {
    std::string text;
    if (const Json* output = inner.Any("output")) text = ReadContent(inner, "output", *output);
    AddMessage("tool", text, to_).set_tool_call_id(inner.Text("call_id").value_or(""));
  }

  void Refer(const std::string& path, BodyFields& inner) {
    const std::string id = inner.Text("id").value_or("");
    const std::string field = inner.Path("id");
    if (id.empty()) return fields_.Fail(engine::BadField(field, "the id of an item", "none"));
    const absl::StatusOr<Json> item = find_(id);
    if (absl::IsNotFound(item.status())) return fields_.Fail(NoResponse(field, nullptr));
    if (!item.ok()) return fields_.Fail(item.status());
    ReadItem(path, *item);
  }

  BodyFields& fields_;
  const FindItem& find_;
  v1::Conversation& to_;
  std::vector<MessagePlace>& places_;
  std::string reasoning_;  // of the answer that comes next
};

void ReadInput(BodyFields& fields, const FindItem& find, v1::Conversation& to,
               std::vector<MessagePlace>& places) {
  const Json* const input = fields.Any("input");
  if (input == nullptr) return fields.Fail(engine::BadField("input", "a text or items", "none"));
  if (input->is_string()) {
    AddMessage("user", input->get<std::string>(), to);
    return places.push_back({.field = "input"});
  }
  if (!input->is_array()) return fields.Expected("input", "a text or a list of items", *input);
  ItemReader reader(fields, find, to, places);
  for (size_t i = 0; i < input->size() && fields.ok(); ++i) {
    reader.Read(absl::StrCat("input[", i, "]"), (*input)[i]);
  }
}

void ReadIncluded(BodyFields& fields, ResponseRequest& request) {
  v1::OutputOptions& to = *request.message.mutable_output();
  const Json* const include = fields.Any("include");
  if (include != nullptr && !include->is_array()) fields.Expected("include", "a list", *include);
  for (const Json& entry : include != nullptr ? *include : Json::array()) {
    if (entry == "message.output_text.logprobs") {
      to.set_logprobs(true);
    } else if (entry == "reasoning.encrypted_content") {
      request.carries_reasoning = true;
    } else {
      fields.Fail(Unsupported("include",
                              "message.output_text.logprobs or reasoning.encrypted_content alone"));
    }
  }
  const std::optional<uint32_t> top = fields.Count("top_logprobs");
  if (!top) return;
  if (*top > 0 && !to.logprobs()) {
    fields.Fail(engine::BadField("top_logprobs",
                                 "it only with include message.output_text.logprobs", "it"));
  }
  to.set_top_logprobs(*top);
}

// Reads `reasoning`: its effort goes to the template; a summary of it is all of it.
std::string ReadEffort(BodyFields& fields, bool& summary) {
  const Json* const reasoning = fields.Any("reasoning");
  if (reasoning == nullptr) return "";
  if (!reasoning->is_object()) {
    fields.Expected("reasoning", "an object", *reasoning);
    return "";
  }
  BodyFields inner(*reasoning, "reasoning.");
  for (const char* name : {"summary", "generate_summary"}) {
    if (inner.Text(name).value_or("none") != "none") summary = true;
  }
  inner.Skip("context");  // each item of the input that reasons is read
  inner.Refuse("mode", "\"standard\"", {"standard"});
  const std::string effort = inner.Text("effort").value_or("");
  fields.Fail(inner.Finish());
  return effort;
}

// Reads `text` and returns its format, which the response repeats.
Json ReadTextFormat(BodyFields& fields, ResponseRequest& request) {
  const Json plain = {{"type", "text"}};
  std::optional<BodyFields> inner = fields.Object("text");
  if (!inner) return plain;
  ReadFormat(*inner, "format", /*flat=*/true, request);
  inner->Refuse("verbosity", "\"medium\"", {"medium"});
  fields.Fail(inner->Finish());
  const Json* const format = inner->Any("format");
  return format == nullptr || IsDefault(*format) ? plain : *format;
}

void RefuseForResponse(BodyFields& fields, ResponseRequest& request) {
  fields.Refuse("background", "false", {false});
  fields.Refuse("truncation", "\"disabled\" or \"auto\", which are the same here",
                {"disabled", "auto"});
  fields.Refuse("stream_options", "{\"include_obfuscation\": false}",
                {Json{{"include_obfuscation", false}}});
  for (const char* name : {"conversation", "prompt", "context_management"}) fields.Refuse(name);
  fields.Skip("max_tool_calls");  // of tools that the service calls by itself
  SkipHints(fields, request);
}

}  // namespace

std::string ResponseId(const std::string& session_id) {
  return absl::StrCat(std::string(kResponsePrefix), session_id);
}

std::optional<std::string> ResponseSessionId(const std::string& response_id) {
  if (!response_id.starts_with(kResponsePrefix)) return std::nullopt;
  std::string session = response_id.substr(kResponsePrefix.size());
  if (!engine::IsSessionId(session)) return std::nullopt;
  return session;
}

std::string ItemId(const char* prefix, const ItemPlace& place) {
  return absl::StrCat(prefix, place.session_id, "_", place.index);
}

std::optional<ItemPlace> FindItemPlace(const std::string& item_id) {
  const size_t begin = item_id.find('_') + 1, end = item_id.rfind('_');
  if (begin == 0 || end == item_id.npos || end < begin) return std::nullopt;
  ItemPlace place = {.session_id = item_id.substr(begin, end - begin)};
  if (!engine::IsSessionId(place.session_id)) return std::nullopt;
  if (!absl::SimpleAtoi(item_id.substr(end + 1), &place.index)) return std::nullopt;
  return place;
}

absl::Status NoResponse(const std::string& field, const char* code) {
  return NotFound(
      absl::StrCat(field, ": expected a stored response that has neither been deleted nor expired"),
      field, code);
}

absl::StatusOr<ResponseRequest> ReadResponse(const Json& body, const ModelNames& model,
                                             const FindItem& find) {
  BodyFields fields(body);
  ResponseRequest request;
  request.api = OpenAiApi::kResponses;
  v1::GenerateRequest& message = request.message;
  v1::Conversation& conversation = *message.mutable_prompt()->mutable_conversation();
  message.mutable_prompt()->set_cacheable(true);
  ReadModel(fields, model);
  request.instructions = fields.Text("instructions");
  const std::optional<std::string> previous = fields.Text("previous_response_id");
  if (previous) {
    request.previous = ResponseSessionId(*previous);
    if (!request.previous) {
      fields.Fail(NoResponse("previous_response_id", "previous_response_not_found"));
    }
  } else if (request.instructions && !request.instructions->empty()) {
    AddMessage("system", *request.instructions, conversation);
    request.places.push_back({.field = "instructions"});
  }
  ReadInput(fields, find, conversation, request.places);
  ReadTools(fields, /*flat=*/true, message);
  ReadTemplateArgs(fields, ReadEffort(fields, request.summarizes), conversation);
  ReadSampling(fields, message);
  ReadVariant(fields, message);
  message.mutable_sampling()->set_n(1);
  message.mutable_stop()->set_max_tokens(
      fields.Count("max_output_tokens").value_or(kDefaultChatTokens));
  ReadIncluded(fields, request);
  if (const Json* const input = fields.Any("input")) request.input = Dump(*input);
  request.store = fields.Bool("store").value_or(true);
  request.stream = fields.Bool("stream").value_or(false);
  const Json* const metadata = fields.Any("metadata");
  if (metadata != nullptr && !metadata->is_object()) {
    fields.Expected("metadata", "an object", *metadata);
  }
  const Json format = ReadTextFormat(fields, request);
  RefuseForResponse(fields, request);
  if (previous && (!message.memory().empty() || message.has_max_centroids())) {
    fields.Fail(
        engine::BadField("memory", "it and max_centroids without previous_response_id", "them"));
  }
  RETURN_IF_ERROR(fields.Finish());
  const auto repeated = [&body](const char* name, Json otherwise) {
    const Json value = body.value(name, Json());
    return value.is_null() ? otherwise : value;
  };
  const v1::SamplingParams& sampling = message.sampling();
  request.shown = {
      {"instructions", repeated("instructions", nullptr)},
      {"previous_response_id", repeated("previous_response_id", nullptr)},
      {"metadata", repeated("metadata", Json::object())},
      {"store", request.store},
      {"max_output_tokens", message.stop().max_tokens()},
      {"temperature", sampling.has_temperature() ? Json(sampling.temperature()) : Json(1.0)},
      {"top_p", sampling.has_top_p() ? Json(sampling.top_p()) : Json(1.0)},
      {"tools", repeated("tools", Json::array())},
      {"tool_choice", repeated("tool_choice", "auto")},
      {"parallel_tool_calls", !message.output().single_call()},
      {"reasoning", repeated("reasoning", {{"effort", nullptr}, {"summary", nullptr}})},
      {"text", {{"format", format}}},
      {"truncation", "disabled"}};
  return request;
}

}  // namespace ovq::server
