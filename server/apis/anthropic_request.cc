#include "server/apis/anthropic_request.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/apis/chat_messages.h"
#include "server/apis/constraint_fields.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

// Reads the blocks of one message's content. The results of tools are messages of their own, before
// the text that comes with them.
class BlockReader {
 public:
  // place: of the message whose blocks these are. places: of to's messages.
  BlockReader(BodyFields& fields, const std::string& role, const std::string& place,
              v1::Conversation& to, std::vector<MessagePlace>& places)
      : fields_(fields), role_(role), place_{.field = place}, to_(to), places_(places) {
    message_.set_role(role);
  }

  void Read(const Json& content) {
    if (content.is_string()) {
      message_.set_content(content.get<std::string>());
    } else if (!content.is_array()) {
      return fields_.Expected("content", "a text or a list of blocks", content);
    }
    for (size_t i = 0; content.is_array() && i < content.size() && fields_.ok(); ++i) {
      Block(absl::StrCat("content[", i, "]"), content[i]);
    }
    const bool only_results = has_results_ && message_.content().empty();
    if (only_results) return;
    *to_.add_messages() = std::move(message_);
    places_.push_back(std::move(place_));
  }

 private:
  void Block(const std::string& path, const Json& block) {
    if (!block.is_object()) return fields_.Expected(path, "an object with a type", block);
    BodyFields inner(block, absl::StrCat(fields_.Path(path), "."));
    const std::string type = inner.Text("type").value_or("");
    inner.Skip("cache_control");
    if (type == "text") {
      message_.mutable_content()->append(inner.Text("text").value_or(""));
      inner.Skip("citations");
    } else if (type == "thinking" && role_ == "assistant") {
      message_.mutable_reasoning()->append(inner.Text("thinking").value_or(""));
      inner.Skip("signature");
    } else if (type == "tool_use" && role_ == "assistant") {
      v1::ToolCall& call = *message_.add_tool_calls();
      place_.calls.push_back(fields_.Path(path));
      call.set_id(inner.Text("id").value_or(""));
      call.set_name(inner.Text("name").value_or(""));
      const Json* const input = inner.Any("input");
      if (input != nullptr && !input->is_object()) inner.Expected("input", "an object", *input);
      call.set_arguments_json(input != nullptr ? Dump(*input) : "{}");
    } else if (type == "tool_result" && role_ == "user") {
      has_results_ = true;
      const Json* const content = inner.Any("content");
      const std::string text = content != nullptr ? ReadContent(inner, "content", *content) : "";
      AddMessage("tool", text, to_).set_tool_call_id(inner.Text("tool_use_id").value_or(""));
      places_.push_back({.field = fields_.Path(path)});
      (void)inner.Bool("is_error");
    } else {
      return fields_.Fail(
          engine::BadField(absl::StrCat(fields_.Path(path), ".type"),
                           role_ == "user" ? "text or tool_result" : "text, thinking or tool_use",
                           IsName(type) ? type : "another"));
    }
    fields_.Fail(inner.Finish());
  }

  BodyFields& fields_;
  const std::string& role_;
  MessagePlace place_;
  v1::Conversation& to_;
  std::vector<MessagePlace>& places_;
  v1::ChatMessage message_;
  bool has_results_ = false;
};

// Begins a text of Claude Code's that is no part of the prompt: its number changes with every
// request, so no prompt would begin like the one before.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

bool IsBilling(const Json& block) {
  const auto text = block.is_object() ? block.find("text") : block.end();
  return text != block.end() && text->is_string() &&
         text->get_ref<const std::string&>().starts_with(kBillingHeader);
}

void ReadSystemField(BodyFields& fields, v1::Conversation& to) {
  const Json* const system = fields.Any("system");
  if (system == nullptr) return;
  if (system->is_array() && std::ranges::any_of(*system, IsBilling)) {
    Json others = Json::array();
    for (const Json& block : *system) {
      if (!IsBilling(block)) others.push_back(block);
    }
    if (others.empty()) return;
    AddMessage("system", ReadContent(fields, "system", others), to);
    return;
  }
  std::string text = ReadContent(fields, "system", *system);
  if (system->is_string() && text.starts_with(kBillingHeader)) {
    text.erase(0, std::min(text.find('\n'), text.size() - 1) + 1);
    if (text.empty()) return;
  }
  AddMessage("system", text, to);
}

// counts: the request asks for no answer, so it may end with one.
void ReadHistory(BodyFields& fields, bool counts, v1::Conversation& to,
                 std::vector<MessagePlace>& places) {
  ReadSystemField(fields, to);
  if (to.messages_size() > 0) places.push_back({.field = "system"});
  const Json* const messages = fields.Any("messages");
  if (messages == nullptr) return;
  if (!messages->is_array()) return fields.Expected("messages", "a list of messages", *messages);
  for (size_t i = 0; i < messages->size() && fields.ok(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    const Json& from = (*messages)[i];
    if (!from.is_object()) return fields.Expected(path, "an object with role and content", from);
    BodyFields inner(from, path + ".");
    const std::string role = inner.Text("role").value_or("");
    const Json* const content = inner.Any("content");
    if (role == "system") {
      inner.Skip("output_config");  // the request's own counts
      if (content != nullptr) {
        AddMessage("system", ReadContent(inner, "content", *content), to);
        places.push_back({.field = path});
      }
    } else if (role != "user" && role != "assistant") {
      fields.Fail(engine::BadField(path + ".role", "user, assistant or system", Quoted(role)));
    } else if (content != nullptr) {
      BlockReader(inner, role, path, to, places).Read(*content);
    }
    fields.Fail(inner.Finish());
    if (!counts && role == "assistant" && i + 1 == messages->size()) {
      // Clients look for the last words, and then send the conversation without it.
      fields.Fail(Unsupported("messages",
                              "a user's message at the end, as this model does not support "
                              "assistant message prefill"));
    }
  }
}

void ReadTools(BodyFields& fields, v1::Conversation& to) {
  const Json* const tools = fields.Any("tools");
  if (tools == nullptr || IsDefault(*tools)) return;
  if (!tools->is_array()) return fields.Expected("tools", "a list of tools", *tools);
  Json list = Json::array();
  for (size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    const std::string path = absl::StrCat("tools[", i, "]");
    const Json& tool = (*tools)[i];
    if (!tool.is_object()) return fields.Expected(path, "an object with name", tool);
    BodyFields inner(tool, path + ".");
    inner.Refuse("type", "a tool of the client's, \"custom\"", {"custom"});
    const std::string name = inner.Text("name").value_or("");
    if (name.empty()) fields.Fail(engine::BadField(path + ".name", "a tool's name", "none"));
    (void)inner.Text("description");
    const Json* const schema = inner.Any("input_schema");
    if (schema != nullptr && !schema->is_object()) {
      inner.Expected("input_schema", "a JSON schema", *schema);
    }
    RefuseLaterTools(inner);
    for (const char* hint : {"cache_control", "input_examples", "eager_input_streaming"}) {
      inner.Skip(hint);
    }
    const bool strict = inner.Bool("strict").value_or(false);
    fields.Fail(inner.Finish());
    list.push_back(ToolJson(name, inner.Any("description"), schema, strict));
  }
  to.set_tools_json(Dump(list));
}

void ReadToolChoice(BodyFields& fields, v1::GenerateRequest& to) {
  std::optional<BodyFields> inner = fields.Object("tool_choice");
  if (!inner) return;
  v1::Conversation& conversation = *to.mutable_prompt()->mutable_conversation();
  const std::string type = inner->Text("type").value_or("");
  if (type == "none") {
    conversation.set_tool_choice(v1::TOOL_CHOICE_NONE);
  } else if (type == "any" || type == "tool") {
    conversation.set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
    if (type == "tool") conversation.set_tool_name(inner->Text("name").value_or(""));
    if (type == "tool" && conversation.tool_name().empty()) {
      fields.Fail(engine::BadField("tool_choice.name", "a tool's name", "none"));
    }
  } else if (type != "auto") {
    fields.Fail(engine::BadField("tool_choice.type", "auto, any, tool or none", Quoted(type)));
  }
  to.mutable_output()->set_single_call(inner->Bool("disable_parallel_tool_use").value_or(false));
  fields.Fail(inner->Finish());
}

// Reads `thinking`: where it is disabled, the template gets enable_thinking: false. Its budget is
// no limit here.
std::string ReadThinking(BodyFields& fields) {
  std::optional<BodyFields> inner = fields.Object("thinking");
  if (!inner) return "";
  const std::string type = inner->Text("type").value_or("");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    fields.Fail(engine::BadField("thinking.type", "enabled, adaptive or disabled", Quoted(type)));
  }
  for (const char* hint : {"budget_tokens", "display"}) inner->Skip(hint);
  fields.Fail(inner->Finish());
  return type == "disabled" ? "none" : "";
}

// Reads `output_config`: its effort, as of /v1/responses, and its format, which is also an older
// field of its own.
std::string ReadOutputConfig(BodyFields& fields, OpenAiRequest& to) {
  ReadFormat(fields, "output_format", /*flat=*/true, to);
  std::optional<BodyFields> inner = fields.Object("output_config");
  if (!inner) return "";
  const std::string effort = inner->Text("effort").value_or("");
  ReadFormat(*inner, "format", /*flat=*/true, to);
  fields.Fail(inner->Finish());
  return effort;
}

// Refuses `context_management`, but for edits that take nothing out of the conversation.
void RefuseEdits(BodyFields& fields) {
  const Json* const given = fields.Any("context_management");
  if (given == nullptr || IsDefault(*given)) return;
  const bool has_edits_alone = given->is_object() && given->size() == 1;
  const Json edits = has_edits_alone ? given->value("edits", Json()) : Json();
  const auto keeps_all = [](const Json& edit) {
    return edit.is_object() && edit.size() == 2 &&
           edit.value("type", Json()) == "clear_thinking_20251015" &&
           edit.value("keep", Json()) == "all";
  };
  if (edits.is_array() && std::ranges::all_of(edits, keeps_all)) return;
  fields.Fail(Unsupported("context_management",
                          "none, or edits clear_thinking_20251015 with keep \"all\""));
}

void ReadLength(BodyFields& fields, v1::GenerateRequest& to) {
  const std::optional<uint32_t> tokens = fields.Count("max_tokens");
  if (!tokens) return fields.Fail(engine::BadField("max_tokens", "a number of tokens", "none"));
  v1::StopConditions& stop = *to.mutable_stop();
  stop.set_max_tokens(*tokens);
  ReadStopTexts(fields, "stop_sequences", stop);
  v1::SamplingParams& sampling = *to.mutable_sampling();
  if (const auto v = fields.Number("temperature")) sampling.set_temperature(*v);
  if (const auto v = fields.Number("top_p")) sampling.set_top_p(*v);
  if (const auto v = fields.Count("top_k")) sampling.set_top_k(*v);
}

}  // namespace

absl::StatusOr<OpenAiRequest> ReadMessagesRequest(const Json& body, const ModelNames& model,
                                                  bool counts) {
  BodyFields fields(body);
  OpenAiRequest request = {.api = OpenAiApi::kMessages, .message = {}};
  v1::GenerateRequest& message = request.message;
  v1::Conversation& conversation = *message.mutable_prompt()->mutable_conversation();
  message.mutable_prompt()->set_cacheable(true);
  message.mutable_output()->set_parts(true);
  ReadModel(fields, model);
  ReadHistory(fields, counts, conversation, request.places);
  ReadTools(fields, conversation);
  ReadToolChoice(fields, message);
  const std::string effort = ReadOutputConfig(fields, request), thinking = ReadThinking(fields);
  ReadTemplateArgs(fields, thinking.empty() ? effort : thinking, conversation);
  if (!counts) {
    ReadLength(fields, message);
    request.stream = fields.Bool("stream").value_or(false);
  }
  for (const char* name : {"container", "mcp_servers"}) fields.Refuse(name);
  RefuseEdits(fields);
  if (const Json* const thread = fields.Any("thread"); thread != nullptr && !IsDefault(*thread)) {
    // Clients then send the whole conversation.
    fields.Fail(Unsupported("thread", "none", "thread_unsupported_request"));
  }
  for (const char* hint : {"cache_control", "inference_geo", "speed"}) fields.Skip(hint);
  SkipHints(fields, request);
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

}  // namespace ovq::server
