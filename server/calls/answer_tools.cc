#include "server/calls/answer_tools.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kStrict = "strict";

// A tool may be an object with its function, or the function itself.
bool HasFunction(const OrderedJson& tool) { return tool.is_object() && tool.contains("function"); }

absl::StatusOr<Tool> ReadAnswerTool(const OrderedJson& from, const std::string& field,
                                    const std::string& path) {
  const OrderedJson& function = HasFunction(from) ? from["function"] : from;
  const auto name = function.is_object() ? function.find("name") : function.end();
  if (name == function.end() || !name->is_string()) {
    return engine::BadField(field, "tools with a name", "one without");
  }
  const OrderedJson strict = function.value(kStrict, OrderedJson());
  if (!strict.is_null() && !strict.is_boolean()) {
    return engine::BadField(absl::StrCat(path, kStrict), "true or false", "another value");
  }
  return Tool{.name = name->get<std::string>(),
              .field = absl::StrCat(path, "parameters"),
              .parameters = function.value("parameters", OrderedJson()),
              .strict = strict == true};
}

// Keeps the tools of these names alone.
absl::Status Keep(const std::vector<std::string>& names, const std::string& field,
                  std::vector<Tool>& tools) {
  for (const std::string& name : names) {
    if (std::ranges::find(tools, name, &Tool::name) != tools.end()) continue;
    return engine::BadField(field, "the name of one of the tools", Quoted(name));
  }
  std::erase_if(tools, [&](const Tool& tool) { return std::ranges::count(names, tool.name) == 0; });
  return absl::OkStatus();
}

// Keeps the tools that the conversation's fields let the answer call.
absl::Status KeepCallable(const v1::Conversation& conversation, const std::string& path,
                          AnswerTools& to) {
  const size_t n_tools = to.callable.size();
  const auto& allowed = conversation.allowed_tools();
  if (!allowed.empty()) {
    if (allowed.size() > std::ssize(to.callable)) {
      return engine::BadField(absl::StrCat(path, ".allowed_tools"),
                              "at most one name for each tool", allowed.size());
    }
    RETURN_IF_ERROR(
        Keep({allowed.begin(), allowed.end()}, absl::StrCat(path, ".allowed_tools"), to.callable));
  }
  if (to.use == AnswerTools::Use::kMust && !conversation.tool_name().empty()) {
    RETURN_IF_ERROR(
        Keep({conversation.tool_name()}, absl::StrCat(path, ".tool_name"), to.callable));
    to.one_call = true;
  }
  to.all = to.callable.size() == n_tools;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AnswerTools> ReadAnswerTools(const v1::Conversation& conversation,
                                            const std::string& path, const engine::Engine& engine) {
  const std::string field = absl::StrCat(path, ".tools_json");
  const bool required = conversation.tool_choice() == v1::TOOL_CHOICE_REQUIRED;
  const std::string& tools_json = conversation.tools_json();
  if (tools_json.empty() && required) {
    return engine::BadField(field, "tools, as a call is required", "none");
  }
  if (tools_json.empty() || conversation.tool_choice() == v1::TOOL_CHOICE_NONE) {
    return AnswerTools();
  }
  if (engine.model().answer_syntax.calls.form == answers::CallForm::kNone) {
    return engine::BadField(field, "none, as the model's chat template writes no tool calls",
                            "tools");
  }
  RETURN_IF_ERROR(engine::CheckToolsBytes(std::ssize(tools_json), path));
  const auto list = ParseJsonList(tools_json, field);
  if (!list.ok()) return engine::BadField(field, "a JSON list of tools", list.status().message());
  AnswerTools to = {.use = required ? AnswerTools::Use::kMust : AnswerTools::Use::kMay};
  auto schemas = std::make_shared<nlohmann::json>(nlohmann::json::object());
  for (size_t i = 0; i < list->size(); ++i) {
    const OrderedJson& from = (*list)[i];
    const std::string place = absl::StrCat(field, "[", i, HasFunction(from) ? "].function." : "].");
    ASSIGN_OR_RETURN(Tool tool, ReadAnswerTool(from, field, place));
    (*schemas)[tool.name] = tool.parameters;
    to.callable.push_back(std::move(tool));
  }
  RETURN_IF_ERROR(KeepCallable(conversation, path, to));
  if (to.callable.empty() && required) {
    return engine::BadField(field, "tools, as a call is required", "an empty list");
  }
  if (to.callable.empty()) to.use = AnswerTools::Use::kNone;
  to.parser = {.tools = true, .schemas = std::move(schemas)};
  for (const Tool& tool : to.callable) {
    if (tool.strict) to.parser.strict.insert(tool.name);
  }
  return to;
}

std::string ShownTools(const std::string& tools_json) {
  if (!absl::StrContains(tools_json, absl::StrCat("\"", kStrict, "\""))) return tools_json;
  absl::StatusOr<OrderedJson> list = ParseJsonList(tools_json, "tools");
  if (!list.ok()) return tools_json;
  for (OrderedJson& tool : *list) {
    OrderedJson& function = HasFunction(tool) ? tool["function"] : tool;
    if (function.is_object()) function.erase(kStrict);
  }
  return list->dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace ovq::server
