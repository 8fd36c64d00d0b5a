// Reads OpenAI's chat messages, tools and tool choice as a v1::Conversation.
#pragma once

#include <string>

#include "ovq/v1/inference.pb.h"
#include "server/http/body_fields.h"

namespace ovq::server {

// Reads a list of messages, such as `messages`.
void ReadMessages(BodyFields& fields, const char* name, const Json& list, v1::Conversation& to);
// The text of a message: a text, or a list of parts of type text.
std::string ReadContent(BodyFields& fields, const std::string& name, const Json& content);
// Appends a message that has a text alone, and returns it.
v1::ChatMessage& AddMessage(const char* role, const std::string& content, v1::Conversation& to);

// The name of a namespace's function as the model reads and writes it.
std::string JoinedName(const std::string& space, const std::string& name);
// Refuses fields of a tool that would keep it from the model until it is searched for, or let other
// programs call it.
void RefuseLaterTools(BodyFields& tool);
// A tool as templates expect it: {"type": "function", "function": {"name", "description",
// "parameters"}}, with "strict" in the function if the arguments must follow the parameters.
Json ToolJson(const std::string& name, const Json* description, const Json* parameters,
              bool strict);
// Reads `tools`, whose entries have the function's fields under "function", or beside "type" where
// `flat`, then `tool_choice` and `parallel_tool_calls`.
void ReadTools(BodyFields& fields, bool flat, v1::GenerateRequest& to);
// Reads `chat_template_kwargs`, and adds `reasoning_effort` to what the template gets if one is
// given ("none" is also enable_thinking: false).
void ReadTemplateArgs(BodyFields& fields, const std::string& reasoning_effort,
                      v1::Conversation& to);

}  // namespace ovq::server
