#include "server/apis/openai_request.h"

#include <limits>

#include "base/status_macros.h"
#include "server/apis/chat_messages.h"
#include "server/apis/constraint_fields.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

void ReadPrompt(BodyFields& fields, const std::string& path, const Json& from, v1::Prompt& to) {
  if (from.is_string()) return to.set_text(from.get<std::string>());
  if (!from.is_array() || from.empty()) {
    return fields.Expected(path, "a text or a list of token ids", from);
  }
  for (const Json& id : from) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<uint32_t>::max()) {
      return fields.Expected(path, "token ids", id);
    }
    to.mutable_token_ids()->add_ids(id.get<uint32_t>());
  }
}

// Reads the prompts of a completion: one, or a list of them.
void ReadPrompts(BodyFields& fields, OpenAiRequest& to) {
  const Json* const prompt = fields.Any("prompt");
  if (prompt == nullptr)
    return fields.Fail(engine::BadField("prompt", "a text or token ids", "none"));
  const bool several = prompt->is_array() && !prompt->empty() &&
                       (prompt->front().is_string() || prompt->front().is_array());
  if (!several) return ReadPrompt(fields, "prompt", *prompt, to.prompts.emplace_back());
  if (std::ssize(*prompt) > kMaxPrompts) {
    return fields.Fail(engine::BadField("prompt", absl::StrCat("at most ", kMaxPrompts, " prompts"),
                                        absl::StrCat(prompt->size())));
  }
  for (size_t i = 0; i < prompt->size() && fields.ok(); ++i) {
    const std::string path = prompt->size() > 1 ? absl::StrCat("prompt[", i, "]") : "prompt";
    ReadPrompt(fields, path, (*prompt)[i], to.prompts.emplace_back());
  }
}

}  // namespace

absl::StatusOr<OpenAiRequest> ReadCompletion(const Json& body, const ModelNames& model) {
  BodyFields fields(body);
  OpenAiRequest request;
  v1::GenerateRequest& message = request.message;
  ReadModel(fields, model);
  ReadPrompts(fields, request);
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
  request.echo = fields.Bool("echo").value_or(false);
  fields.Refuse("suffix", "none", {""});
  fields.Refuse("add_special_tokens", "true", {true});
  ReadConstraintFields(fields, request);
  RefuseVllmFields(fields);
  SkipHints(fields, request);
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<OpenAiRequest> ReadChat(const Json& body, const ModelNames& model) {
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
  if (const auto cacheable = fields.Bool("cache_prompt")) {
    message.mutable_prompt()->set_cacheable(*cacheable);
  }
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
  ReadConstraintFields(fields, request);
  RefuseVllmFields(fields);
  SkipHints(fields, request);
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

}  // namespace ovq::server
