#include "model/chat_template/chat_format.h"

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "model/tokenizers/tokenizer_folder.h"

namespace ovq::jinja {
namespace {

using Json = nlohmann::json;

constexpr char kConfigFile[] = "tokenizer_config.json";
constexpr char kTemplateFile[] = "chat_template.jinja";

// Finds an entry in a list of {"name": ..., "template": ...}; null if there is none of that name.
const Json* FindNamed(const Json& list, std::string_view name) {
  for (const Json& entry : list) {
    if (!entry.is_object() || !entry.contains("name") || !entry.contains("template")) continue;
    if (entry["name"] == name && entry["template"].is_string()) return &entry["template"];
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatFormat>> ChatFormat::Load(const std::string& folder) {
  const std::string config_path = absl::StrCat(folder, "/", kConfigFile);
  ASSIGN_OR_RETURN(const Json config, model::OptionalObject(config_path));
  const std::string path = absl::StrCat(folder, "/", kTemplateFile);
  std::string what = absl::StrCat(config_path, ": chat_template");
  std::string text;
  const Json* with_tools = nullptr;
  std::error_code error;
  const bool is_file = std::filesystem::exists(path, error);
  if (is_file) {
    ASSIGN_OR_RETURN(text, ReadFile(path, kMaxTemplateBytes));
    what = path;
  } else if (!config.contains("chat_template") || config["chat_template"].is_null()) {
    return nullptr;
  } else {
    const Json& field = config["chat_template"];
    const Json* usual = field.is_array() ? FindNamed(field, "default") : &field;
    if (usual == nullptr || !usual->is_string()) {
      return absl::DataLossError(
          absl::StrCat(what, ": expected a text, or a list of named ones with one named default"));
    }
    text = usual->get<std::string>();
    if (field.is_array()) with_tools = FindNamed(field, "tool_use");
  }
  ASSIGN_OR_RETURN(ChatTemplate usual, ChatTemplate::Parse(text, what));
  std::unique_ptr<ChatFormat> format(new ChatFormat(std::move(usual)));
  format->source_ = is_file ? kTemplateFile : kConfigFile;
  if (with_tools != nullptr) {
    ASSIGN_OR_RETURN(format->with_tools_,
                     ChatTemplate::Parse(with_tools->get<std::string>(), what + " tool_use"));
  }
  ASSIGN_OR_RETURN(const Json map, model::OptionalObject(folder + "/special_tokens_map.json"));
  format->tokens_ = nlohmann::ordered_json::object();
  for (const char* role : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const std::string token = model::TokenText(config.contains(role) ? config : map, role);
    if (!token.empty()) format->tokens_[role] = token;
  }
  return format;
}

absl::StatusOr<std::string> ChatFormat::Render(std::span<const ChatMessage> messages,
                                               std::string_view tools_json, bool opens_answer,
                                               const std::tm& now) const {
  nlohmann::ordered_json tools;
  if (!tools_json.empty()) {
    absl::StatusOr<nlohmann::ordered_json> parsed = ParseJsonList(tools_json, "tools_json");
    if (!parsed.ok()) return absl::InvalidArgumentError(parsed.status().message());
    tools = *std::move(parsed);
  }
  nlohmann::ordered_json variables = tokens_;
  nlohmann::ordered_json& list = variables["messages"] = nlohmann::ordered_json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = opens_answer;
  const bool uses_tools = with_tools_.has_value() && !tools.is_null();
  variables["tools"] = std::move(tools);
  return (uses_tools ? *with_tools_ : usual_).Render(variables, now);
}

}  // namespace ovq::jinja
