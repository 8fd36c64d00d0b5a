#include "server/apis/openai_fields.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/validate.h"
#include "server/http/http_errors.h"

namespace ovq::server {

absl::Status CheckModel(const std::string& asked, const ModelNames& model) {
  if (std::ranges::count(model, asked) > 0) return absl::OkStatus();
  return NotFound(absl::StrCat("model: expected \"", absl::StrJoin(model, "\" or \""),
                               "\", which is served, got ", Quoted(asked)),
                  "model", "model_not_found");
}

void ReadModel(BodyFields& fields, const ModelNames& model) {
  const std::optional<std::string> asked = fields.Text("model");
  if (asked) fields.Fail(CheckModel(*asked, model));
}

void SkipHints(BodyFields& fields, OpenAiRequest& to) {
  to.session_key = fields.Text("prompt_cache_key").value_or("");
  for (const char* name :
       {"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_retention",
        "prompt_cache_options", "request_id", "client_metadata"}) {
    fields.Skip(name);
  }
}

void RefuseVllmFields(BodyFields& fields) {
  for (const char* name :
       {"guided_decoding_backend", "guided_whitespace_pattern", "bad_words", "allowed_token_ids",
        "truncate_prompt_tokens", "prompt_logprobs", "logits_processors", "kv_transfer_params",
        "cache_salt", "vllm_xargs", "mm_processor_kwargs", "chat_template", "documents"}) {
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

namespace {

// Checks the length of a list before its entries are copied.
void CheckCount(BodyFields& fields, const char* name, int64_t count, int64_t most) {
  if (count <= most) return;
  fields.Fail(engine::BadField(fields.Path(name), absl::StrCat("at most ", most), count));
}

void ReadLogitBias(BodyFields& fields, v1::SamplingParams& to) {
  const Json* const bias = fields.Any("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) return fields.Expected("logit_bias", "an object", *bias);
  CheckCount(fields, "logit_bias", std::ssize(*bias), engine::kMaxLogitBias);
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

}  // namespace

void ReadStopTexts(BodyFields& fields, const char* name, v1::StopConditions& to) {
  const Json* const stop = fields.Any(name);
  if (stop == nullptr) return;
  if (stop->is_string()) return to.add_stop_strings(stop->get<std::string>());
  if (!stop->is_array()) return fields.Expected(name, "a text or a list of texts", *stop);
  CheckCount(fields, name, std::ssize(*stop), engine::kMaxStopStrings);
  if (!fields.ok()) return;
  for (const Json& entry : *stop) {
    if (!entry.is_string()) return fields.Expected(name, "a text or a list of texts", entry);
    to.add_stop_strings(entry.get<std::string>());
  }
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
  ReadStopTexts(fields, "stop", stop);
  for (const uint32_t id : fields.Ids("stop_token_ids")) stop.add_stop_token_ids(id);
  if (const auto v = fields.Bool("ignore_eos")) stop.set_ignore_eos(*v);
  if (const auto v = fields.Count("min_tokens")) stop.set_min_tokens(*v);
  if (const auto v = fields.Bool("include_stop_str_in_output")) stop.set_include_stop_text(*v);
}

void ReadStream(BodyFields& fields, OpenAiRequest& to) {
  to.stream = fields.Bool("stream").value_or(false);
  std::optional<BodyFields> inner = fields.Object("stream_options");
  if (!inner) return;
  if (!to.stream)
    return fields.Fail(engine::BadField("stream_options", "it only with stream", "it"));
  to.include_usage = inner->Bool("include_usage").value_or(false);
  to.continuous_usage = inner->Bool("continuous_usage_stats").value_or(false);
  inner->Refuse("include_obfuscation", "false", {false});
  fields.Fail(inner->Finish());
}

void ReadVariant(BodyFields& fields, v1::GenerateRequest& to) {
  if (const auto policy = fields.Text("memory")) to.set_memory(*policy);
  if (const auto cap = fields.Count("max_centroids")) to.set_max_centroids(*cap);
}

namespace {

// The name that an API's clients know a tool's schema by, behind the tool's own place.
std::string InTheirSchema(std::string text, OpenAiApi api) {
  const char* const theirs = api == OpenAiApi::kResponses  ? ".parameters"
                             : api == OpenAiApi::kMessages ? ".input_schema"
                                                           : nullptr;
  constexpr std::string_view kOurs = ".function.parameters";
  const size_t at = text.find(kOurs);
  if (theirs != nullptr && text.starts_with("tools[") && at != text.npos) {
    text.replace(at, kOurs.size(), theirs);
  }
  return text;
}

// The field that asks for a constraint, where the request's own is not known.
std::string ConstraintField(OpenAiApi api) {
  if (api == OpenAiApi::kResponses) return "text.format";
  return api == OpenAiApi::kMessages ? "output_config.format" : "response_format";
}

// The request's name of a field of a conversation's message, such as "messages[1].role".
std::string InTheirMessage(absl::string_view field, const FieldNames& names) {
  const auto place_of = [&](size_t i) {
    return i < names.messages.size() ? names.messages[i]
                                     : MessagePlace{.field = absl::StrCat("messages[", i, "]")};
  };
  const auto index = [&field](absl::string_view list) {
    size_t i = 0;
    absl::string_view rest = field;
    if (!absl::ConsumePrefix(&rest, list)) return std::optional<size_t>();
    const size_t end = rest.find(']');
    if (end == rest.npos || !absl::SimpleAtoi(rest.substr(0, end), &i)) {
      return std::optional<size_t>();
    }
    field = rest.substr(end + 1);
    return std::optional<size_t>(i);
  };
  const MessagePlace place = place_of(index("messages[").value_or(0));
  const std::optional<size_t> call = index(".tool_calls[");
  if (call) {
    const std::string theirs = *call < place.calls.size()
                                   ? place.calls[*call]
                                   : absl::StrCat(place.field, ".tool_calls[", *call, "]");
    if (names.api == OpenAiApi::kChat && field == ".name") field = ".function.name";
    if (names.api == OpenAiApi::kResponses && field == ".id") field = ".call_id";
    return absl::StrCat(theirs, field);
  }
  if (names.api == OpenAiApi::kResponses && field == ".tool_call_id") field = ".call_id";
  if (names.api == OpenAiApi::kMessages && field == ".tool_call_id") field = ".tool_use_id";
  return absl::StrCat(place.field, field);
}

}  // namespace

absl::Status RenameField(const absl::Status& status, absl::string_view ours,
                         absl::string_view theirs, OpenAiApi api) {
  const auto renamed = [&](absl::string_view text) {
    if (!absl::ConsumePrefix(&text, ours)) return std::string(text);
    return InTheirSchema(absl::StrCat(theirs, text), api);
  };
  absl::Status in_theirs(status.code(), renamed(status.message()));
  engine::ErrorFacts facts = engine::GetErrorFacts(status);
  facts.field = renamed(facts.field);
  return engine::WithLogText(engine::WithFacts(in_theirs, facts), engine::LogText(status));
}

absl::Status ToOpenAiError(const absl::Status& status, const FieldNames& names) {
  const OpenAiApi api = names.api;
  const engine::ErrorFacts facts = engine::GetErrorFacts(status);
  absl::string_view of_message = facts.field;
  (void)absl::ConsumePrefix(&of_message, "prompt.");
  if (absl::ConsumePrefix(&of_message, "conversation.") &&
      absl::StartsWith(of_message, "messages[")) {
    return RenameField(status, facts.field, InTheirMessage(of_message, names), api);
  }
  const std::string form = names.constraint.empty() ? ConstraintField(api) : names.constraint;
  const char* const prompt = names.prompt.c_str();
  // A constraint has one field here, whatever its kind.
  const bool of_constraint = absl::StartsWith(facts.field, "sampling.constraint");
  const std::string ours_of_constraint = of_constraint ? facts.field : "sampling.constraint";
  const std::array<std::pair<const char*, const char*>, 20> renamed = {{
      {ours_of_constraint.c_str(), form.c_str()},
      {"prompt.conversation.tools_json", "tools"},
      {"prompt.conversation.tool_name", "tool_choice"},
      {"prompt.conversation.allowed_tools", "tool_choice"},
      {"prompt.conversation.template_args_json", "chat_template_kwargs"},
      {"prompt.conversation.messages", "messages"},
      {"prompt.conversation", "messages"},
      {"conversation.messages", "messages"},
      {"conversation.template_args_json", "chat_template_kwargs"},
      {"conversation.tools_json", "tools"},
      {"conversation", "messages"},
      {"prompt.text", prompt},
      {"prompt.token_ids.ids", prompt},
      {"stop.stop_strings", "stop"},
      {"stop.", ""},
      {"sampling.", ""},
      {"output.top_logprobs", "logprobs"},
      {"top_logprobs", "logprobs"},
      {"output.", ""},
      {"prompt", prompt},
  }};
  for (auto [ours, theirs] : renamed) {
    if (!absl::StartsWith(facts.field, ours)) continue;
    const bool chat = api != OpenAiApi::kCompletions;
    if (chat && absl::EndsWith(ours, "top_logprobs")) theirs = "top_logprobs";
    if (api == OpenAiApi::kResponses && theirs == std::string_view("messages")) theirs = "input";
    if (api == OpenAiApi::kMessages && theirs == std::string_view("stop"))
      theirs = "stop_sequences";
    return RenameField(status, ours, theirs, api);
  }
  return status;
}

}  // namespace ovq::server
