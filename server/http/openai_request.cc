#include "server/http/openai_request.h"

#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/session.h"
#include "server/engine/common/validate.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";

void ReadFormat(BodyFields& fields) {
  const Json* const format = fields.Any("response_format");
  if (format == nullptr || IsDefault(*format)) return;
  if (format->is_object() && format->value("type", Json()) == "text") return;
  fields.Fail(Unsupported("response_format", "{\"type\": \"text\"}"));
}

// Skips fields without a meaning here: the user's id at OpenAI, and options of its service.
void SkipWithoutMeaning(BodyFields& fields) {
  for (const char* name : {"user", "metadata", "service_tier", "safety_identifier",
                           "prompt_cache_key", "prompt_cache_retention", "request_id"}) {
    fields.Skip(name);
  }
}

void RefuseVllmFields(BodyFields& fields) {
  for (const char* name :
       {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
        "guided_decoding_backend", "bad_words", "allowed_token_ids", "truncate_prompt_tokens",
        "prompt_logprobs", "logits_processors", "kv_transfer_params", "cache_salt", "vllm_xargs",
        "mm_processor_kwargs", "chat_template", "documents"}) {
    fields.Refuse(name);
  }
  fields.Refuse("use_beam_search", "false", {false});
  fields.Refuse("skip_special_tokens", "true", {true});
  fields.Refuse("spaces_between_special_tokens", "true", {true});
  fields.Refuse("return_tokens_as_token_ids", "false", {false});
  fields.Refuse("return_token_ids", "false", {false});
  fields.Refuse("priority", "0", {0});
  fields.Refuse("length_penalty", "1", {1.0});
}

void ReadStop(BodyFields& fields, v1::StopConditions& to) {
  const Json* const stop = fields.Any("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) return to.add_stop_strings(stop->get<std::string>());
  if (!stop->is_array()) return fields.Expected("stop", "a text or a list of texts", *stop);
  const int64_t size = std::ssize(*stop);
  fields.Fail(engine::CheckListSizes({.stop_strings = size}, ""));
  if (!fields.ok()) return;
  for (const Json& entry : *stop) {
    if (!entry.is_string()) return fields.Expected("stop", "a text or a list of texts", entry);
    to.add_stop_strings(entry.get<std::string>());
  }
}

void ReadLogitBias(BodyFields& fields, v1::SamplingParams& to) {
  const Json* const bias = fields.Any("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Expected("logit_bias", "an object", *bias);
  fields.Fail(engine::CheckListSizes({.logit_bias = std::ssize(*bias)}, ""));
  if (!fields.ok()) return;
  for (const auto& entry : bias->items()) {
    uint32_t id = 0;
    if (!absl::SimpleAtoi(entry.key(), &id)) {
      return fields.Fail(engine::BadField("logit_bias", "token ids as keys", Quoted(entry.key())));
    }
    if (!entry.value().is_number()) return fields.Expected("logit_bias", "numbers", entry.value());
    (*to.mutable_logit_bias())[id] = static_cast<float>(entry.value().get<double>());
  }
}

void ReadStream(BodyFields& fields, OpenAiRequest& to) {
  to.stream = fields.Bool("stream").value_or(false);
  const Json* const options = fields.Any("stream_options");
  if (options == nullptr || IsDefault(*options)) return;
  if (!options->is_object()) return fields.Expected("stream_options", "an object", *options);
  if (!to.stream)
    return fields.Fail(engine::BadField("stream_options", "it only with stream", "it"));
  BodyFields inner(*options, "stream_options.");
  to.include_usage = inner.Bool("include_usage").value_or(false);
  to.continuous_usage = inner.Bool("continuous_usage_stats").value_or(false);
  inner.Refuse("include_obfuscation", "false", {false});
  fields.Fail(inner.Finish());
}

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

// Refuses tools: nothing here parses the calls that a model would write.
void RefuseTools(BodyFields& fields) {
  fields.Refuse("tools");
  fields.Refuse("tool_choice", "\"none\"", {"none"});
  fields.Refuse("functions");
  fields.Refuse("function_call", "\"none\"", {"none"});
  fields.Skip("parallel_tool_calls");  // without tools it means nothing
  ReadFormat(fields);
  fields.Refuse("modalities", "[\"text\"]", {Json::array({"text"})});
  for (const char* name : {"audio", "prediction", "web_search_options", "reasoning_effort",
                           "verbosity", "moderation"}) {
    fields.Refuse(name);
  }
}

std::string ReadContent(BodyFields& fields, const std::string& name, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  constexpr const char* kExpected = "a text or a list of parts of type text";
  if (!content.is_array()) {
    fields.Expected(name, kExpected, content);
    return "";
  }
  std::string text;
  for (const Json& part : content) {
    const std::string type = part.is_object() ? part.value("type", Json("")).dump() : "";
    const bool is_text =
        type == "\"text\"" || type == "\"input_text\"" || type == "\"output_text\"";
    const auto found = is_text ? part.find("text") : part.end();
    if (!is_text || found == part.end() || !found->is_string()) {
      fields.Fail(Unsupported(fields.Path(name), kExpected));
      return "";
    }
    text += found->get_ref<const std::string&>();
  }
  return text;
}

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
    entry.set_name(inner.Text("name").value_or(""));
    entry.set_arguments_json(inner.Text("arguments").value_or("{}"));
    fields.Fail(inner.Finish());
    fields.Fail(call.Finish());
  }
}

void ReadTemplateArgs(BodyFields& fields, v1::Conversation& to) {
  const Json* const args = fields.Any("chat_template_kwargs");
  if (args == nullptr) return;
  if (!args->is_object()) return fields.Expected("chat_template_kwargs", "an object", *args);
  if (!args->empty()) to.set_template_args_json(Dump(*args));
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
  // A field of answers, which clients send back.
  inner.Skip("annotations");
  for (const char* name : {"refusal", "id", "status"}) inner.Skip(name);
  inner.Refuse("type", "\"message\"", {"message"});
  for (const char* name : {"function_call", "audio"}) inner.Refuse(name);
  fields.Fail(inner.Finish());
}

void ReadSampling(BodyFields& fields, v1::GenerateRequest& to) {
  v1::SamplingParams& sampling = *to.mutable_sampling();
  if (const auto v = fields.Number("temperature")) sampling.set_temperature(*v);
  if (const auto v = fields.Number("top_p")) sampling.set_top_p(*v);
  if (const auto v = fields.Number("min_p")) sampling.set_min_p(*v);
  if (const auto v = fields.Number("typical_p")) sampling.set_typical_p(*v);
  if (const auto v = fields.Number("repetition_penalty")) sampling.set_repetition_penalty(*v);
  if (const auto v = fields.Number("presence_penalty")) sampling.set_presence_penalty(*v);
  if (const auto v = fields.Number("frequency_penalty")) sampling.set_frequency_penalty(*v);
  if (const auto v = fields.Integer("seed")) sampling.set_seed(*v);
  const Json* const top_k = fields.Any("top_k");
  if (top_k != nullptr && *top_k != -1) {  // -1 means off, like 0
    if (const auto v = fields.Count("top_k")) sampling.set_top_k(*v);
  }
  ReadLogitBias(fields, sampling);
  v1::StopConditions& stop = *to.mutable_stop();
  ReadStop(fields, stop);
  for (const uint32_t id : fields.Ids("stop_token_ids")) stop.add_stop_token_ids(id);
  if (const auto v = fields.Bool("ignore_eos")) stop.set_ignore_eos(*v);
  if (const auto v = fields.Count("min_tokens")) stop.set_min_tokens(*v);
  if (const auto v = fields.Bool("include_stop_str_in_output")) stop.set_include_stop_text(*v);
}

void ReadVariant(BodyFields& fields, v1::GenerateRequest& to) {
  if (const auto policy = fields.Text("memory")) to.set_memory(*policy);
  if (const auto cap = fields.Count("max_centroids")) to.set_max_centroids(*cap);
}

void AddMessage(const char* role, const std::string& content, v1::Conversation& to) {
  v1::ChatMessage& message = *to.add_messages();
  message.set_role(role);
  message.set_content(content);
}

void ReadInput(BodyFields& fields, v1::Conversation& to) {
  const Json* const input = fields.Any("input");
  if (input == nullptr) return fields.Fail(engine::BadField("input", "a text or messages", "none"));
  if (!input->is_string()) return ReadMessages(fields, "input", *input, to);
  AddMessage("user", *input, to);
}

void ReadIncluded(BodyFields& fields, v1::OutputOptions& to) {
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

void RefuseForResponse(BodyFields& fields) {
  fields.Refuse("tools");
  fields.Refuse("tool_choice", "\"auto\" or \"none\"", {"auto", "none"});
  fields.Refuse("background", "false", {false});
  fields.Refuse("text", "{\"format\": {\"type\": \"text\"}}",
                {Json{{"format", {{"type", "text"}}}}});
  fields.Refuse("truncation", "\"disabled\" or \"auto\", which are the same here",
                {"disabled", "auto"});
  fields.Refuse("stream_options", "{\"include_obfuscation\": false}",
                {Json{{"include_obfuscation", false}}});
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

void ReadModel(BodyFields& fields, const std::string& model) {
  const std::optional<std::string> asked = fields.Text("model");
  if (!asked || *asked == model) return;
  fields.Fail(NotFound(absl::StrCat("model: expected \"", model, "\", the one that is served"),
                       "model", "model_not_found"));
}

void ReadMessages(BodyFields& fields, const char* name, const Json& list, v1::Conversation& to) {
  if (!list.is_array()) return fields.Expected(name, "a list of messages", list);
  for (size_t i = 0; i < list.size() && fields.ok(); ++i) {
    ReadMessage(fields, absl::StrCat(fields.Path(name), "[", i, "]"), list[i], to);
  }
}

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
  SkipWithoutMeaning(fields);
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
  ReadTemplateArgs(fields, conversation);
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
  RefuseTools(fields);
  RefuseVllmFields(fields);
  SkipWithoutMeaning(fields);
  RETURN_IF_ERROR(fields.Finish());
  return request;
}

std::string ResponseId(const std::string& session_id) {
  return absl::StrCat(std::string(kResponsePrefix), session_id);
}

std::optional<std::string> ResponseSessionId(const std::string& response_id) {
  if (!response_id.starts_with(kResponsePrefix)) return std::nullopt;
  std::string session = response_id.substr(kResponsePrefix.size());
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
    AddMessage("system", *request.instructions, conversation);
  }
  ReadInput(fields, conversation);
  ReadSampling(fields, message);
  ReadVariant(fields, message);
  message.mutable_sampling()->set_n(1);
  message.mutable_stop()->set_max_tokens(
      fields.Count("max_output_tokens").value_or(kDefaultChatTokens));
  ReadIncluded(fields, *message.mutable_output());
  request.store = fields.Bool("store").value_or(true);
  request.stream = fields.Bool("stream").value_or(false);
  const Json* const metadata = fields.Any("metadata");
  if (metadata != nullptr && !metadata->is_object()) {
    fields.Expected("metadata", "an object", *metadata);
  }
  RefuseForResponse(fields);
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

absl::Status ToOpenAiError(const absl::Status& status, OpenAiApi api) {
  static constexpr std::array<std::pair<const char*, const char*>, 10> kNames = {{
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
    if (api == OpenAiApi::kChat && absl::EndsWith(ours, "top_logprobs")) theirs = "top_logprobs";
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
