#include "server/http/openai_request.h"

#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"
#include "server/http/chat_messages.h"
#include "server/http/http_errors.h"
#include "server/http/openai_fields.h"

namespace ovq::server {
namespace {

// Reads the prompt of a completion: one text, or its token ids.
void ReadPrompt(BodyFields& fields, v1::Prompt& to) {
  const Json* prompt = fields.Any("prompt");
  if (prompt == nullptr)
    return fields.Fail(engine::BadField("prompt", "a text or token ids", "none"));
  const bool one_of_one = prompt->is_array() && prompt->size() == 1 &&
                          (prompt->front().is_string() || prompt->front().is_array());
  if (one_of_one) prompt = &prompt->front();
  if (prompt->is_string()) return to.set_text(prompt->get<std::string>());
  if (!prompt->is_array() || prompt->empty()) {
    return fields.Expected("prompt", "a text or a list of token ids", *prompt);
  }
  if (prompt->front().is_string() || prompt->front().is_array()) {
    return fields.Fail(
        Unsupported("prompt", "one prompt; send each of several as its own request"));
  }
  for (const Json& id : *prompt) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
      return fields.Expected("prompt", "token ids", id);
    }
    to.mutable_token_ids()->add_ids(id.get<uint32_t>());
  }
}

}  // namespace

absl::StatusOr<OpenAiRequest> ReadCompletion(const Json& body, const std::string& model) {
  BodyFields fields(body);
  OpenAiRequest request;
  v1::GenerateRequest& message = request.message;
  ReadModel(fields, model);
  ReadPrompt(fields, *message.mutable_prompt());
  ReadSampling(fields, message);
  ReadStream(fields, request);
  ReadVariant(fields, message);
  // GuideLLM sends both fields with one value.
  const std::optional<uint32_t> tokens = fields.Count("max_tokens");
  const std::optional<uint32_t> other_name = fields.Count("max_completion_tokens");
  message.mutable_stop()->set_max_tokens(
      tokens.value_or(other_name.value_or(kDefaultCompletionTokens)));
  const uint32_t n = fields.Count("n").value_or(1);
  message.mutable_sampling()->set_n(n);
  fields.Refuse("best_of", "what n says, or none", {n});
  if (const auto top = fields.Count("logprobs")) {
    message.mutable_output()->set_logprobs(true);
    message.mutable_output()->set_top_logprobs(*top);
  }
  if (const auto cacheable = fields.Bool("cache_prompt")) {
    message.mutable_prompt()->set_cacheable(*cacheable);
  }
  fields.Refuse("echo", "false", {false});
  fields.Refuse("suffix", "none", {""});
  fields.Refuse("add_special_tokens", "true", {true});
  ReadFormat(fields);
  RefuseVllmFields(fields);
  SkipHints(fields);
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<OpenAiRequest> ReadChat(const Json& body, const std::string& model) {
  BodyFields fields(body);
  OpenAiRequest request = {.api = OpenAiApi::kChat, .message = {}};
  v1::GenerateRequest& message = request.message;
  ReadModel(fields, model);
  v1::Conversation& conversation = *message.mutable_prompt()->mutable_conversation();
  if (const Json* messages = fields.Any("messages")) {
    ReadMessages(fields, "messages", *messages, conversation);
  }
  ReadTemplateArgs(fields, fields.Text("reasoning_effort").value_or(""), conversation);
  ReadTools(fields, /*flat=*/false, message);
  // So that the next turn, which sends this text again, need not prefill it again.
  message.mutable_prompt()->set_cacheable(fields.Bool("cache_prompt").value_or(true));
  if (const auto v = fields.Bool("add_generation_prompt")) {
    conversation.set_add_generation_prompt(*v);
  }
  ReadSampling(fields, message);
  ReadStream(fields, request);
  ReadVariant(fields, message);
  const std::optional<uint32_t> old_name = fields.Count("max_tokens");
  const std::optional<uint32_t> tokens = fields.Count("max_completion_tokens");
  message.mutable_stop()->set_max_tokens(tokens.value_or(old_name.value_or(kDefaultChatTokens)));
  message.mutable_sampling()->set_n(fields.Count("n").value_or(1));
  message.mutable_output()->set_logprobs(fields.Bool("logprobs").value_or(false));
  if (const auto top = fields.Count("top_logprobs")) {
    if (*top > 0 && !message.output().logprobs()) {
      fields.Fail(engine::BadField("top_logprobs", "it only with logprobs", "it"));
    }
    message.mutable_output()->set_top_logprobs(*top);
  }
  fields.Refuse("store", "false", {false});
  fields.Refuse("echo", "false", {false});
  fields.Refuse("continue_final_message", "false", {false});
  fields.Refuse("add_special_tokens", "false", {false});
  fields.Refuse("functions");
  fields.Refuse("function_call", "\"none\"", {"none"});
  fields.Refuse("modalities", "[\"text\"]", {Json::array({"text"})});
  for (const char* name :
       {"audio", "prediction", "web_search_options", "verbosity", "moderation"}) {
    fields.Refuse(name);
  }
  ReadFormat(fields);
  RefuseVllmFields(fields);
  SkipHints(fields);
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::Status ToOpenAiError(const absl::Status& status, OpenAiApi api) {
  static constexpr std::array<std::pair<const char*, const char*>, 12> kNames = {{
      {"prompt.conversation.tools_json", "tools"},
      {"prompt.conversation.tool_name", "tool_choice"},
      {"prompt.conversation.template_args_json", "chat_template_kwargs"},
      {"prompt.conversation.messages", "messages"},
      {"prompt.conversation", "messages"},
      {"prompt.text", "prompt"},
      {"prompt.token_ids.ids", "prompt"},
      {"stop.stop_strings", "stop"},
      {"stop.", ""},
      {"sampling.", ""},
      {"output.top_logprobs", "logprobs"},
      {"output.", ""},
  }};
  const engine::ErrorFacts facts = engine::GetErrorFacts(status);
  for (auto [ours, theirs] : kNames) {
    if (!absl::StartsWith(facts.field, ours)) continue;
    const bool chat = api != OpenAiApi::kCompletions;
    if (chat && absl::EndsWith(ours, "top_logprobs")) theirs = "top_logprobs";
    if (api == OpenAiApi::kResponses && theirs == std::string_view("messages")) theirs = "input";
    const auto renamed = [ours = ours, theirs = theirs](absl::string_view text) {
      return absl::ConsumePrefix(&text, ours) ? absl::StrCat(theirs, text) : std::string(text);
    };
    absl::Status in_theirs(status.code(), renamed(status.message()));
    engine::ErrorFacts all = facts;
    all.field = renamed(facts.field);
    return engine::WithLogText(engine::WithFacts(in_theirs, all), engine::LogText(status));
  }
  return status;
}

}  // namespace ovq::server
