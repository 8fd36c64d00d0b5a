#include "server/http/response_request.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/session.h"
#include "server/http/body_fields.h"
#include "server/http/http_errors.h"
#include "server/http/openai_request.h"

namespace ovq::server {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kPrefix = "resp_";

void ReadInput(BodyFields& fields, v1::Conversation& to) {
  const Json* const input = fields.Any("input");
  if (input == nullptr) return fields.Fail(engine::BadField("input", "a text or messages", "none"));
  if (!input->is_string()) return ReadMessages(fields, "input", *input, to);
  v1::ChatMessage& message = *to.add_messages();
  message.set_role("user");
  message.set_content(input->get<std::string>());
}

void ReadLogprobs(BodyFields& fields, v1::OutputOptions& to) {
  const Json* const include = fields.Any("include");
  if (include != nullptr && *include == Json::array({"message.output_text.logprobs"})) {
    to.set_logprobs(true);
  } else if (include != nullptr && *include != Json::array()) {
    fields.Fail(Unsupported("include", "[] or [\"message.output_text.logprobs\"]"));
  }
  const std::optional<uint32_t> top = fields.Count("top_logprobs");
  if (!top) return;
  if (*top > 0 && !to.logprobs()) {
    fields.Fail(engine::BadField("top_logprobs",
                                 "it only with include message.output_text.logprobs", "it"));
  }
  to.set_top_logprobs(*top);
}

void RefuseOthers(BodyFields& fields) {
  const auto is = [](Json value) {
    return [value = std::move(value)](const Json& json) { return json == value; };
  };
  fields.Refuse("tools", "none", is(Json::array()));
  fields.Refuse("tool_choice", "\"auto\" or \"none\"",
                [](const Json& json) { return json == "auto" || json == "none"; });
  fields.Refuse("background", "false", is(false));
  fields.Refuse("text", "{\"format\": {\"type\": \"text\"}}", [](const Json& json) {
    return json == Json{{"format", {{"type", "text"}}}};
  });
  fields.Refuse("truncation", "\"disabled\" or \"auto\", which are the same here",
                [](const Json& json) { return json == "disabled" || json == "auto"; });
  fields.Refuse("stream_options", "{\"include_obfuscation\": false}",
                is({{"include_obfuscation", false}}));
  for (const char* name : {"reasoning", "conversation", "prompt", "context_management"}) {
    fields.Refuse(name);
  }
  for (const char* name :
       {"parallel_tool_calls", "max_tool_calls", "user", "service_tier", "safety_identifier",
        "prompt_cache_key", "prompt_cache_retention", "request_id"}) {
    fields.Skip(name);
  }
}

}  // namespace

std::string ResponseId(const std::string& session_id) {
  return absl::StrCat(std::string(kPrefix), session_id);
}

std::optional<std::string> ResponseSessionId(const std::string& response_id) {
  if (!response_id.starts_with(kPrefix)) return std::nullopt;
  std::string session = response_id.substr(kPrefix.size());
  if (!engine::IsSessionId(session)) return std::nullopt;
  return session;
}

absl::Status NoResponse(const std::string& field, const char* code) {
  return NotFound(
      absl::StrCat(field, ": expected a stored response that has neither been deleted nor expired"),
      field, code);
}

absl::StatusOr<ResponseRequest> ReadResponse(const Json& body, const std::string& model) {
  BodyFields fields(body);
  ResponseRequest request;
  v1::GenerateRequest& message = request.message;
  v1::Conversation& conversation = *message.mutable_prompt()->mutable_conversation();
  ReadModel(fields, model);
  request.instructions = fields.Text("instructions");
  const std::optional<std::string> previous = fields.Text("previous_response_id");
  if (previous) {
    request.previous = ResponseSessionId(*previous);
    if (!request.previous) {
      fields.Fail(NoResponse("previous_response_id", "previous_response_not_found"));
    }
  } else if (request.instructions && !request.instructions->empty()) {
    v1::ChatMessage& system = *conversation.add_messages();
    system.set_role("system");
    system.set_content(*request.instructions);
  }
  ReadInput(fields, conversation);
  ReadSampling(fields, message);
  ReadVariant(fields, message);
  message.mutable_sampling()->set_n(1);
  message.mutable_stop()->set_max_tokens(
      fields.Count("max_output_tokens").value_or(kDefaultChatTokens));
  ReadLogprobs(fields, *message.mutable_output());
  request.store = fields.Bool("store").value_or(true);
  request.stream = fields.Bool("stream").value_or(false);
  const Json* const metadata = fields.Any("metadata");
  if (metadata != nullptr && !metadata->is_object()) {
    fields.Expected("metadata", "an object", *metadata);
  }
  RefuseOthers(fields);
  if (previous && (!message.memory().empty() || message.has_max_centroids())) {
    fields.Fail(
        engine::BadField("memory", "it and max_centroids without previous_response_id", "them"));
  }
  RETURN_IF_ERROR(fields.Finish());
  request.shown = {
      {"instructions", request.instructions ? Json(*request.instructions) : Json()},
      {"previous_response_id", previous ? Json(*previous) : Json()},
      {"metadata", metadata ? *metadata : Json::object()},
      {"store", request.store},
      {"max_output_tokens", message.stop().max_tokens()},
      {"temperature",
       message.sampling().has_temperature() ? Json(message.sampling().temperature()) : Json(1.0)},
      {"top_p", message.sampling().has_top_p() ? Json(message.sampling().top_p()) : Json(1.0)},
      {"tools", Json::array()},
      {"tool_choice", "auto"},
      {"parallel_tool_calls", true},
      {"text", {{"format", {{"type", "text"}}}}},
      {"truncation", "disabled"}};
  return request;
}

}  // namespace ovq::server
