#include "model/chat_template/chat_format.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq::jinja {
namespace {

using Json = nlohmann::json;

constexpr char kJsonFile[] = "chat_template.json";
constexpr char kTemplateFile[] = "chat_template.jinja";
constexpr char kTrace[] = "a text to look for";  // of a message, in what a template writes

// A template's text, and its place for messages.
struct Source {
  std::string text, place;
};

// Templates by their names, and the file that the default is from.
struct Sources {
  std::optional<Source> usual, tool_use;
  std::string file;
};

// Reads the file unless `to` is set or there is none.
absl::Status AddFile(const std::string& path, std::optional<Source>& to) {
  std::error_code error;
  if (to || !std::filesystem::exists(path, error)) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::string text, ReadFile(path, kMaxTemplateBytes));
  to = Source{.text = std::move(text), .place = path};
  return absl::OkStatus();
}

// Reads the field of a JSON file, which may be absent.
absl::Status AddField(const std::string& path, const Json& json, Sources& to) {
  const auto field = json.find("chat_template");
  if (field == json.end() || field->is_null()) return absl::OkStatus();
  const std::string place = absl::StrCat(path, ": chat_template");
  if (field->is_string()) to.usual = {.text = *field, .place = place};
  for (const Json& entry : field->is_array() ? *field : Json::array()) {
    if (!entry.is_object() || !entry.contains("template")) continue;
    const Json &name = entry.value("name", Json()), &text = entry["template"];
    if (name == "default" && text.is_string()) to.usual = {.text = text, .place = place};
    if (name == "tool_use" && text.is_string() && !to.tool_use)
      to.tool_use = {.text = text, .place = place + " tool_use"};
  }
  to.file = std::filesystem::path(path).filename();
  if (to.usual) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(place, ": expected a text, or a list of named ones with one named default"));
}

absl::StatusOr<Sources> FindSources(const std::string& folder, const Json& config) {
  Sources found;
  const std::string more = folder + "/additional_chat_templates/";
  RETURN_IF_ERROR(AddFile(more + "default.jinja", found.usual));
  RETURN_IF_ERROR(AddFile(absl::StrCat(folder, "/", kTemplateFile), found.usual));
  RETURN_IF_ERROR(AddFile(more + "tool_use.jinja", found.tool_use));
  if (found.usual) found.file = std::filesystem::path(found.usual->place).filename();
  if (!found.usual) {
    const std::string path = absl::StrCat(folder, "/", kJsonFile);
    ASSIGN_OR_RETURN(const Json json, model::OptionalObject(path));
    RETURN_IF_ERROR(AddField(path, json, found));
  }
  if (!found.usual) RETURN_IF_ERROR(AddField(model::TokenizerConfigPath(folder), config, found));
  return found;
}

// The message as templates expect it, in the order of Transformers' own examples.
nlohmann::ordered_json MessageJson(const ChatMessage& message) {
  nlohmann::ordered_json json = {{"role", message.role}, {"content", nullptr}};
  if (message.content) json["content"] = *message.content;
  if (!message.name.empty()) json["name"] = message.name;
  if (!message.reasoning.empty()) {
    json["reasoning_content"] = message.reasoning;
    json["tool_plan"] = message.reasoning;
  }
  for (const ToolCall& call : message.tool_calls) {
    const auto parsed = ParseOrderedObject(call.arguments_json, "arguments");
    nlohmann::ordered_json arguments =
        parsed.ok() ? *parsed : nlohmann::ordered_json(call.arguments_json);
    nlohmann::ordered_json& entry = json["tool_calls"].emplace_back();
    if (!call.id.empty()) entry["id"] = call.id;
    entry["type"] = "function";
    entry["function"] = {{"name", call.name}, {"arguments", std::move(arguments)}};
  }
  if (!message.tool_call_id.empty()) json["tool_call_id"] = message.tool_call_id;
  return json;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormat::Load(const std::string& folder,
                                                             const std::string& file) {
  ASSIGN_OR_RETURN(const Json config, model::TokenizerConfig(folder));
  Sources found;
  if (file.empty()) {
    ASSIGN_OR_RETURN(found, FindSources(folder, config));
    if (!found.usual) return nullptr;
  } else {
    ASSIGN_OR_RETURN(std::string text, ReadFile(file, kMaxTemplateBytes));
    found = {.usual = Source{.text = std::move(text), .place = file}, .tool_use = {}, .file = file};
  }
  ASSIGN_OR_RETURN(ChatTemplate usual, ChatTemplate::Parse(found.usual->text, found.usual->place));
  std::unique_ptr<ChatFormat> format(new ChatFormat(std::move(usual)));
  format->source_ = found.file;
  if (found.tool_use) {
    ASSIGN_OR_RETURN(format->with_tools_,
                     ChatTemplate::Parse(found.tool_use->text, found.tool_use->place));
  }
  format->tokens_ = nlohmann::ordered_json::object();
  for (const std::string_view role : model::kTokenRoles) {
    const std::string token = model::TokenText(config, role);
    if (!token.empty()) format->tokens_[std::string(role)] = token;
  }
  return format;
}

absl::StatusOr<std::string> ChatFormat::Render(const Conversation& conversation,
                                               const std::tm& now) const {
  nlohmann::ordered_json tools, variables = tokens_;
  if (!conversation.tools_json.empty()) {
    absl::StatusOr<nlohmann::ordered_json> parsed =
        ParseJsonList(conversation.tools_json, "tools_json");
    if (!parsed.ok()) return absl::InvalidArgumentError(parsed.status().message());
    tools = *std::move(parsed);
  }
  nlohmann::ordered_json& list = variables["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : conversation.messages) list.push_back(MessageJson(message));
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = conversation.opens_answer;
  const bool uses_tools = with_tools_.has_value() && !tools.is_null();
  variables["tools"] = std::move(tools);
  if (!conversation.args_json.empty()) {
    const absl::StatusOr<nlohmann::ordered_json> args =
        ParseOrderedObject(conversation.args_json, "template_args_json");
    if (!args.ok()) return absl::InvalidArgumentError(args.status().message());
    for (const auto& [name, value] : args->items()) {
      if (variables.contains(name) && name != "documents") {
        return absl::InvalidArgumentError(absl::StrCat(
            "template_args_json: expected variables without a field of their own, got ", name));
      }
      variables[name] = value;
    }
  }
  const ChatTemplate& used = uses_tools ? *with_tools_ : usual_;
  absl::StatusOr<std::string> text = used.Render(variables, now);
  const auto is_null = [](const nlohmann::ordered_json& m) { return m["content"].is_null(); };
  if (!text.ok() && std::ranges::any_of(variables["messages"], is_null)) {
    for (nlohmann::ordered_json& message : variables["messages"]) {
      if (is_null(message)) message["content"] = "";
    }
    text = used.Render(variables, now);
  }
  return text;
}

bool ChatFormat::WritesLater(const std::string& role, const std::tm& now) const {
  const std::vector<ChatMessage> messages = {{.role = "user", .content = "a"},
                                             {.role = role, .content = kTrace},
                                             {.role = "assistant", .content = "b"}};
  const absl::StatusOr<std::string> text = Render({.messages = messages}, now);
  return text.ok() && text->find(kTrace) != std::string::npos;
}

RoleUse ChatFormat::UseOfRole(const std::string& role, const std::tm& now) const {
  std::vector<ChatMessage> messages;
  if (role == "tool") {
    const ToolCall call = {.id = "000000001", .name = "tool", .arguments_json = "{}"};
    messages = {{.role = "user", .content = "a"},
                {.role = "assistant", .content = std::nullopt, .tool_calls = {call}},
                {.role = role, .content = kTrace, .tool_call_id = call.id, .name = call.name}};
  } else {
    messages = {{.role = role, .content = kTrace}, {.role = "user", .content = "a"}};
  }
  const absl::StatusOr<std::string> text = Render({.messages = messages}, now);
  if (!text.ok()) return RoleUse::kRefused;
  return text->find(kTrace) != std::string::npos ? RoleUse::kWritten : RoleUse::kPassedOver;
}

}  // namespace ovq::jinja
