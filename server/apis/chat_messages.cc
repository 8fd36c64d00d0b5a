#include "server/apis/chat_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_errors.h"

namespace ovq::server {

std::string ReadContent(BodyFields& fields, const std::string& name, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  constexpr const char* kExpected = "a text or a list of parts of type text";
  if (!content.is_array()) {
    fields.Expected(name, kExpected, content);
    return "";
  }
  std::string text;
  for (const Json& part : content) {
    const Json type = part.is_object() ? part.value("type", Json()) : Json();
    const bool is_text = type == "text" || type == "input_text" || type == "output_text";
    const auto found = is_text ? part.find("text") : part.end();
    if (!is_text || found == part.end() || !found->is_string()) {
      fields.Fail(Unsupported(fields.Path(name), kExpected));
      return "";
    }
    text += found->get_ref<const std::string&>();
  }
  return text;
}

v1::ChatMessage& AddMessage(const char* role, const std::string& content, v1::Conversation& to) {
  v1::ChatMessage& message = *to.add_messages();
  message.set_role(role);
  message.set_content(content);
  return message;
}

namespace {

// Reads the calls of an answer: {"id", "type": "function", "function": {"name", "arguments"}}.
void ReadCalls(BodyFields& fields, v1::ChatMessage& to) {
  const Json* const calls = fields.Any("tool_calls");
  if (calls == nullptr) return;
  if (!calls->is_array()) return fields.Expected("tool_calls", "a list of calls", *calls);
  for (size_t i = 0; i < calls->size() && fields.ok(); ++i) {
    const std::string path = absl::StrCat("tool_calls[", i, "]");
    const Json& from = (*calls)[i];
    const auto function = from.is_object() ? from.find("function") : from.end();
    if (function == from.end() || !function->is_object()) {
      return fields.Expected(path, "an object with a function", from);
    }
    BodyFields call(from, absl::StrCat(fields.Path(path), "."));
    BodyFields inner(*function, absl::StrCat(fields.Path(path), ".function."));
    v1::ToolCall& entry = *to.add_tool_calls();
    entry.set_id(call.Text("id").value_or(""));
    call.Refuse("type", "\"function\"", {"function"});
    for (const char* name : {"function", "index"}) call.Skip(name);
    inner.Skip("parsed_arguments");
    entry.set_name(inner.Text("name").value_or(""));
    entry.set_arguments_json(inner.Text("arguments").value_or("{}"));
    fields.Fail(inner.Finish());
    fields.Fail(call.Finish());
  }
}

void ReadMessage(BodyFields& fields, const std::string& path, const Json& from,
                 v1::Conversation& to) {
  if (!from.is_object()) return fields.Expected(path, "an object with role and content", from);
  BodyFields inner(from, absl::StrCat(path, "."));
  v1::ChatMessage& message = *to.add_messages();
  message.set_role(inner.Text("role").value_or(""));
  if (const Json* content = inner.Any("content")) {
    message.set_content(ReadContent(inner, "content", *content));
  }
  message.set_name(inner.Text("name").value_or(""));
  message.set_tool_call_id(inner.Text("tool_call_id").value_or(""));
  for (const char* name : {"reasoning", "reasoning_content"}) {
    if (const auto reasoning = inner.Text(name)) message.set_reasoning(*reasoning);
  }
  ReadCalls(inner, message);
  // Fields of answers and of what clients make of them, which they send back.
  for (const char* name : {"annotations", "refusal", "id", "status", "timestamp", "parsed"}) {
    inner.Skip(name);
  }
  inner.Refuse("type", "\"message\"", {"message"});
  for (const char* name : {"function_call", "audio"}) inner.Refuse(name);
  fields.Fail(inner.Finish());
}

}  // namespace

void ReadMessages(BodyFields& fields, const char* name, const Json& list, v1::Conversation& to) {
  if (!list.is_array()) return fields.Expected(name, "a list of messages", list);
  for (size_t i = 0; i < list.size() && fields.ok(); ++i) {
    ReadMessage(fields, absl::StrCat(fields.Path(name), "[", i, "]"), list[i], to);
  }
}

std::string JoinedName(const std::string& space, const std::string& name) {
  return space.empty() ? name : absl::StrCat(space, "__", name);
}

void RefuseLaterTools(BodyFields& tool) {
  tool.Refuse("defer_loading", "false", {false});
  tool.Refuse("allowed_callers", "[\"direct\"]", {Json::array({"direct"})});
}

Json ToolJson(const std::string& name, const Json* description, const Json* parameters,
              bool strict) {
  Json function = {{"name", name}};
  if (description != nullptr) function["description"] = *description;
  if (parameters != nullptr) function["parameters"] = *parameters;
  if (strict) function["strict"] = true;
  return {{"type", "function"}, {"function", std::move(function)}};
}

namespace {

// Reads one tool of a namespace, or of none ("").
Json ReadTool(BodyFields& fields, const std::string& path, const Json& from, bool flat,
              const std::string& space) {
  if (!from.is_object()) {
    fields.Expected(path, "an object with type and function", from);
    return {};
  }
  BodyFields outer(from, absl::StrCat(fields.Path(path), "."));
  const std::string type = outer.Text("type").value_or("function");
  const Json* const function = flat ? &from : outer.Any("function");
  if (type != "function" || function == nullptr || !function->is_object()) {
    fields.Fail(Unsupported(fields.Path(path),
                            absl::StrCat("a tool of type function", flat ? " or namespace" : "",
                                         ", got ", IsName(type) ? type : "another")));
    return {};
  }
  BodyFields inner(*function, absl::StrCat(fields.Path(path), flat ? "." : ".function."));
  const std::string name = inner.Text("name").value_or("");
  if (name.empty()) fields.Fail(engine::BadField(inner.Path("name"), "a tool's name", "none"));
  RefuseLaterTools(inner);
  const Json* const parameters = inner.Any("parameters");
  if (parameters != nullptr && !parameters->is_object()) {
    inner.Expected("parameters", "a JSON schema", *parameters);
  }
  const bool strict = inner.Bool("strict").value_or(false);
  (void)inner.Text("description");
  if (flat) inner.Skip("type");
  fields.Fail(inner.Finish());
  if (!flat) fields.Fail(outer.Finish());
  return ToolJson(JoinedName(space, name), inner.Any("description"), parameters, strict);
}

// Reads a list of tools, or those of a namespace: {"type": "namespace", "name", "description",
// "tools"}, of which functions have the joined name.
void ReadToolList(BodyFields& fields, const std::string& path, const Json& from, bool flat,
                  const std::string& space, Json& to) {
  if (!from.is_array()) return fields.Expected(path, "a list of tools", from);
  for (size_t i = 0; i < from.size() && fields.ok(); ++i) {
    const std::string name = absl::StrCat(path, "[", i, "]");
    const Json& tool = from[i];
    const bool has_tools =
        flat && space.empty() && tool.is_object() && tool.value("type", Json()) == "namespace";
    if (!has_tools) {
      to.push_back(ReadTool(fields, name, tool, flat, space));
      continue;
    }
    BodyFields inner(tool, absl::StrCat(fields.Path(name), "."));
    for (const char* said : {"type", "description"}) inner.Skip(said);
    const std::string own = inner.Text("name").value_or("");
    if (own.empty()) fields.Fail(engine::BadField(inner.Path("name"), "a name", "none"));
    const Json* const tools = inner.Any("tools");
    ReadToolList(fields, absl::StrCat(name, ".tools"), tools != nullptr ? *tools : Json::array(),
                 flat, own, to);
    fields.Fail(inner.Finish());
  }
}

// The name of a function that a choice names: beside its type where `flat`, else under "function".
std::string ChosenName(const Json& choice, bool flat) {
  if (!choice.is_object() || choice.value("type", Json()) != "function") return "";
  const Json holder = flat ? choice : choice.value("function", Json());
  const Json name = holder.is_object() ? holder.value("name", Json()) : Json();
  return name.is_string() ? name.get<std::string>() : "";
}

// Reads {"mode": "auto" or "required", "tools": [...]}, the tools that may be called.
void ReadAllowedTools(BodyFields& fields, const Json& choice, bool flat, v1::Conversation& to) {
  const Json holder = flat ? choice : choice.value("allowed_tools", Json());
  const Json mode = holder.is_object() ? holder.value("mode", Json()) : Json();
  if (mode != "auto" && mode != "required") {
    return fields.Fail(
        engine::BadField("tool_choice.mode", "\"auto\" or \"required\"", Shown(mode)));
  }
  if (mode == "required") to.set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  const Json tools = holder.value("tools", Json());
  if (!tools.is_array() || tools.empty()) {
    return fields.Fail(engine::BadField("tool_choice.tools", "a list of tools", Shown(tools)));
  }
  for (const Json& tool : tools) {
    const std::string name = ChosenName(tool, flat);
    if (name.empty()) {
      return fields.Fail(engine::BadField("tool_choice.tools", "functions by name", Shown(tool)));
    }
    to.add_allowed_tools(name);
  }
}

void ReadToolChoice(BodyFields& fields, bool flat, v1::Conversation& to) {
  const Json* const choice = fields.Any("tool_choice");
  if (choice == nullptr || IsDefault(*choice) || *choice == "auto") return;
  constexpr const char* kExpected =
      "\"auto\", \"none\", \"required\", the name of a function, or allowed_tools";
  if (*choice == "none") return to.set_tool_choice(v1::TOOL_CHOICE_NONE);
  if (choice->is_object() && choice->value("type", Json()) == "allowed_tools") {
    return ReadAllowedTools(fields, *choice, flat, to);
  }
  to.set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  if (*choice == "required") return;
  if (!choice->is_object() || choice->value("type", Json()) != "function") {
    return fields.Fail(Unsupported("tool_choice", kExpected));
  }
  const std::string name = ChosenName(*choice, flat);
  if (name.empty()) return fields.Expected("tool_choice", kExpected, *choice);
  to.set_tool_name(name);
}

}  // namespace

void ReadTools(BodyFields& fields, bool flat, v1::GenerateRequest& to) {
  v1::Conversation& conversation = *to.mutable_prompt()->mutable_conversation();
  const Json* const tools = fields.Any("tools");
  if (tools != nullptr && !IsDefault(*tools)) {
    Json list = Json::array();
    ReadToolList(fields, "tools", *tools, flat, /*space=*/"", list);
    conversation.set_tools_json(Dump(list));
  }
  ReadToolChoice(fields, flat, conversation);
  if (conversation.tool_choice() == v1::TOOL_CHOICE_REQUIRED && conversation.tools_json().empty()) {
    fields.Fail(engine::BadField("tool_choice", "\"auto\" or \"none\" without tools", "another"));
  }
  to.mutable_output()->set_parts(true);
  to.mutable_output()->set_single_call(!fields.Bool("parallel_tool_calls").value_or(true));
}

void ReadTemplateArgs(BodyFields& fields, const std::string& reasoning_effort,
                      v1::Conversation& to) {
  Json args = Json::object();
  if (const Json* const given = fields.Any("chat_template_kwargs")) {
    if (!given->is_object()) return fields.Expected("chat_template_kwargs", "an object", *given);
    args = *given;
  }
  if (!reasoning_effort.empty() && !args.contains("reasoning_effort")) {
    args["reasoning_effort"] = reasoning_effort;
    if (reasoning_effort == "none" && !args.contains("enable_thinking")) {
      args["enable_thinking"] = false;
    }
  }
  if (!args.empty()) to.set_template_args_json(Dump(args));
}

}  // namespace ovq::server
