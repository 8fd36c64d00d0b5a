// The tools that the answer to a conversation may call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/answers/answer_parser.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/engine.h"

namespace ovq::server {

struct Tool {
  std::string name;
  std::string field;  // the place of its schema in the request, for errors
  nlohmann::ordered_json parameters = nullptr;  // a JSON schema; null: none is given
  bool strict = false;                          // its arguments follow the schema
};

struct AnswerTools {
  enum class Use : uint8_t { kNone, kMay, kMust };
  Use use = Use::kNone;
  std::vector<Tool> callable = {};  // at least one, unless kNone
  bool all = true;                  // `callable` has all that the model is told of
  bool one_call = false;            // the only call is to a given tool
  answers::ParserOptions parser = {};
};

// Reads tools, tool_choice, tool_name and allowed_tools of a conversation. path: the name of its
// field. InvalidArgument: tools that are no list of named tools, or that the chat template has no
// calls for; names that are none of them.
absl::StatusOr<AnswerTools> ReadAnswerTools(const v1::Conversation& conversation,
                                            const std::string& path, const engine::Engine& engine);

// The tools as a template gets them: a JSON list without `strict`, which is no part of what a model
// is told. Text that is no such list stays as it is.
std::string ShownTools(const std::string& tools_json);

}  // namespace ovq::server
