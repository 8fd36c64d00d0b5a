#include "server/calls/convert.h"

#include <algorithm>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "base/status_macros.h"
#include "server/calls/answer_form.h"
#include "server/calls/answer_tools.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/prefix_cache.h"
#include "server/engine/common/session.h"
#include "server/engine/common/validate.h"

namespace ovq::server {

std::vector<int32_t> TokenIds(const google::protobuf::RepeatedField<uint32_t>& ids) {
  return {ids.begin(), ids.end()};
}

namespace {

void SetSampling(const v1::SamplingParams& from, engine::GenerateRequest& to) {
  model::SamplingParams& params = to.sampling;
  if (from.has_temperature()) params.temperature = from.temperature();
  if (from.has_top_p()) params.top_p = from.top_p();
  if (from.has_min_p()) params.min_p = from.min_p();
  if (from.has_typical_p()) params.typical_p = from.typical_p();
  if (from.has_repetition_penalty()) params.repetition_penalty = from.repetition_penalty();
  if (from.has_presence_penalty()) params.presence_penalty = from.presence_penalty();
  if (from.has_frequency_penalty()) params.frequency_penalty = from.frequency_penalty();
  params.top_k = static_cast<int32_t>(from.top_k());
  params.seed = from.seed();
  to.seed_given = from.has_seed();
  for (const auto& [id, bias] : from.logit_bias()) {
    params.logit_bias[static_cast<int32_t>(id)] = bias;
  }
  if (from.has_n()) to.n = static_cast<int>(from.n());
}

void SetStop(const v1::StopConditions& from, const model::Tokenizer* tokenizer,
             engine::GenerateRequest& to) {
  if (from.has_max_tokens()) to.stop.max_tokens = from.max_tokens();
  to.stop.min_tokens = from.min_tokens();
  to.stop.strings.assign(from.stop_strings().begin(), from.stop_strings().end());
  to.stop.token_ids = TokenIds(from.stop_token_ids());
  if (tokenizer != nullptr && !to.stop.strings.empty()) {
    to.stop.special_tokens = tokenizer->special_tokens();
    std::erase_if(to.stop.special_tokens, [&to](const auto& token) {
      return std::ranges::count(to.stop.strings, token.second) == 0;
    });
  }
  to.stop.ignore_eos = from.ignore_eos();
  to.stop.include_stop_text = from.include_stop_text();
}

void FillTime(absl::Time from, google::protobuf::Timestamp& to) {
  // Rounds down, so that the nanoseconds are never negative.
  const int64_t seconds = absl::ToUnixSeconds(from);
  to.set_seconds(seconds);
  to.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(from - absl::FromUnixSeconds(seconds))));
}

v1::FinishReason ToProto(engine::FinishReason reason) {
  if (reason == engine::FinishReason::kStop) return v1::FINISH_REASON_STOP;
  if (reason == engine::FinishReason::kLength) return v1::FINISH_REASON_LENGTH;
  if (reason == engine::FinishReason::kCancelled) return v1::FINISH_REASON_CANCELLED;
  return v1::FINISH_REASON_UNSPECIFIED;  // the others end the call with a status
}

void FillTop(const std::vector<model::TokenLogprob>& from, v1::TopLogprobs& to) {
  to.mutable_token_ids()->Reserve(static_cast<int>(from.size()));
  to.mutable_logprobs()->Reserve(static_cast<int>(from.size()));
  for (const model::TokenLogprob& entry : from) {
    to.add_token_ids(entry.token_id);
    to.add_logprobs(entry.logprob);
  }
}

// The number of tokens with which both `tokens` and those of the text begin.
int64_t CommonTokens(std::span<const int32_t> tokens, std::string_view text,
                     const engine::Engine& engine) {
  const auto others = engine.model().tokenizer->Encode(std::string(text), /*add_bos=*/false);
  if (!others.ok()) return 0;
  return std::ranges::mismatch(tokens, *others).in1 - tokens.begin();
}

// The number of tokens before those that open the answer. Every later rendering of the same
// messages has them, whatever it writes of the answer.
int64_t TokensBeforeAnswer(const PromptIds& prompt, const engine::Engine& engine) {
  const std::vector<int32_t>& tokens = prompt.ids;
  const std::string &text = prompt.text.text, &opened = prompt.text.opened;
  if (opened.empty()) return std::ssize(tokens);
  const auto own = engine.model().tokenizer->Encode(opened, /*add_bos=*/false);
  const bool apart = own.ok() && own->size() <= tokens.size() &&
                     std::equal(own->rbegin(), own->rend(), tokens.rbegin());
  if (apart) return std::ssize(tokens) - std::ssize(*own);
  return CommonTokens(tokens, std::string_view(text).substr(0, text.size() - opened.size()),
                      engine);
}

void SetCacheable(const v1::Prompt& from, const PromptPlace& place, const PromptIds& encoded,
                  const engine::Engine& engine, engine::CallRequest& to) {
  const bool conversation = from.has_conversation();
  if (from.has_cacheable() ? !from.cacheable() : !conversation) return;
  if (std::ssize(encoded.ids) <= engine::kPrefixMinTokens) {
    to.cacheable = std::ssize(encoded.ids);  // too short to be cached
    return;
  }
  if (conversation) {
    to.shared_tokens = CommonTokens(encoded.ids, SystemText(from.conversation(), engine), engine);
  }
  const bool system_only = place.in_session && !from.has_cacheable();
  to.cacheable = system_only ? to.shared_tokens : TokensBeforeAnswer(encoded, engine);
  to.cache_answer = !place.in_session;
}

}  // namespace

absl::Duration ToDuration(const google::protobuf::Duration& from) {
  constexpr int32_t kNanos = 1'000'000'000;
  if (from.nanos() <= -kNanos || from.nanos() >= kNanos)
    return absl::InfiniteDuration();  // invalid
  return absl::Seconds(from.seconds()) + absl::Nanoseconds(from.nanos());
}

absl::StatusOr<std::vector<int32_t>> Encode(const engine::Engine& engine, const std::string& text,
                                            bool add_bos, const std::string& field) {
  RETURN_IF_ERROR(engine::CheckTextBytes(engine.config(), text.size(), field));
  absl::StatusOr<std::vector<int32_t>> tokens = engine.model().tokenizer->Encode(text, add_bos);
  if (tokens.ok()) return tokens;
  // The tokenizer's message may quote the text.
  return engine::WithLogText(tokens.status(), absl::StrCat(field, ": cannot be encoded"));
}

absl::StatusOr<PromptIds> PromptTokens(const v1::Prompt& prompt, const std::string& prefix,
                                       const PromptPlace& place, const engine::Engine& engine) {
  PromptIds to;
  const model::Tokenizer* tokenizer = engine.model().tokenizer;
  const bool has_text = tokenizer != nullptr && tokenizer->has_text();
  switch (prompt.kind_case()) {
    case v1::Prompt::kText: {
      const std::string field = absl::StrCat(prefix, "prompt.text");
      if (!has_text) return engine::ModelLacks(field, "tokenizer");
      // Whether a token begins the text depends on what the session has, which must be known. One
      // that is not there is refused later, after all fields were checked.
      if (!absl::IsNotFound(place.session)) RETURN_IF_ERROR(place.session);
      ASSIGN_OR_RETURN(to.ids, Encode(engine, prompt.text(), place.at_start, field));
      break;
    }
    case v1::Prompt::kConversation: {
      const std::string field = absl::StrCat(prefix, "prompt.conversation");
      if (!has_text) return engine::ModelLacks(field, "tokenizer");
      ASSIGN_OR_RETURN(to.text, NewText(prompt.conversation(), field, place, engine));
      ASSIGN_OR_RETURN(to.ids, Encode(engine, to.text.text, /*add_bos=*/false, field));
      break;
    }
    case v1::Prompt::kTokenIds: {
      const auto& ids = prompt.token_ids().ids();
      RETURN_IF_ERROR(engine::CheckPromptLength(engine.config(), ids.size(), prefix));
      to.ids = TokenIds(ids);
      break;
    }
    case v1::Prompt::KIND_NOT_SET:
      break;
  }
  return to;
}

absl::StatusOr<std::string> SetPrompt(const v1::Prompt& prompt, const PromptPlace& place,
                                      const engine::Engine& engine, engine::CallRequest& to) {
  ASSIGN_OR_RETURN(PromptIds encoded, PromptTokens(prompt, to.field_prefix, place, engine));
  if (place.at_start && engine.options().prefix_memory_bytes > 0) {
    SetCacheable(prompt, place, encoded, engine, to);
  }
  to.rewrites = encoded.text.rewrites;
  to.prompt = std::move(encoded.ids);
  return std::move(encoded.text.begun);
}

namespace {

// Checks what the fields of a prompt and OutputOptions.parts ask of each other.
absl::Status CheckParts(const v1::Prompt& prompt, bool has_parts, const std::string& prefix) {
  const std::string field = absl::StrCat(prefix, "output.parts");
  if (has_parts && !prompt.has_conversation()) {
    return engine::BadField(field, "it only with prompt.conversation", "it");
  }
  const v1::Conversation& conversation = prompt.conversation();
  const bool chooses = conversation.tool_choice() == v1::TOOL_CHOICE_REQUIRED ||
                       !conversation.allowed_tools().empty();
  if (!has_parts && chooses) {
    return engine::BadField(field, "true, as the calls of the answer are chosen", "false");
  }
  return absl::OkStatus();
}

}  // namespace

template <class Message>
absl::Status SetGeneration(const Message& from, const PromptPlace& place, ServiceContext& services,
                           engine::GenerateRequest& to) {
  const engine::Engine& engine = services.engine;
  // Checked before the lists are copied.
  absl::Status sizes =
      engine::CheckListSizes({.stop_strings = from.stop().stop_strings_size(),
                              .stop_token_ids = from.stop().stop_token_ids_size(),
                              .logit_bias = std::ssize(from.sampling().logit_bias())},
                             to.field_prefix);
  if (!sizes.ok()) return sizes;
  SetSampling(from.sampling(), to);
  SetStop(from.stop(), engine.model().tokenizer, to);
  to.output.logprobs = from.output().logprobs();
  to.output.top_logprobs = static_cast<int>(from.output().top_logprobs());
  if (from.output().speculation() != v1::SPECULATION_UNSPECIFIED) {
    to.output.speculation = static_cast<engine::Speculation>(from.output().speculation());
  }
  if (from.has_expected_position()) to.expected_position = from.expected_position();
  const v1::Conversation& conversation = from.prompt().conversation();
  const bool has_parts = from.output().parts();
  RETURN_IF_ERROR(CheckParts(from.prompt(), has_parts, to.field_prefix));
  ASSIGN_OR_RETURN(const std::optional<PlacedSource> content,
                   ReadConstraint(from.sampling(), to.field_prefix));
  AnswerTools tools;
  if (has_parts || absl::StrContains(conversation.tools_json(), "\"strict\"")) {
    const std::string path = absl::StrCat(to.field_prefix, "prompt.conversation");
    ASSIGN_OR_RETURN(tools, ReadAnswerTools(conversation, path, engine));
  }
  ASSIGN_OR_RETURN(std::string begun, SetPrompt(from.prompt(), place, engine, to));
  std::optional<FramedForm> form;
  if (from.prompt().has_conversation()) {
    ASSIGN_OR_RETURN(form, FrameAnswer(engine.model().answer_syntax, begun, content, tools,
                                       from.output().single_call()));
  } else if (content) {
    form = {.form = engine::AnswerForm::Given(content->source), .sources = {*content}};
  }
  if (form) {
    if (engine.model().vocabulary == nullptr) {
      return engine::ModelLacks(absl::StrCat(to.field_prefix, "sampling.constraint"), "tokenizer");
    }
    ASSIGN_OR_RETURN(to.constraint, services.constraints.Get(*form, to.client));
    tools.parser.calls_in_code = form->calls_in_code;
  }
  if (!has_parts) return absl::OkStatus();
  to.output.parts = {.begun = std::move(begun),
                     .parser = std::move(tools.parser),
                     .one_call = from.output().single_call() || tools.one_call};
  return absl::OkStatus();
}
template absl::Status SetGeneration(const v1::GenerateRequest&, const PromptPlace&, ServiceContext&,
                                    engine::GenerateRequest&);
template absl::Status SetGeneration(const v1::ChatTurn&, const PromptPlace&, ServiceContext&,
                                    engine::GenerateRequest&);

std::string MakeSessionKey(const std::string& text) {
  constexpr size_t kDigits = 32;
  if (engine::IsSessionKey(text)) return text;
  Sha256 hash;
  hash.AddText(text);
  return hash.Hex().substr(0, kDigits);
}

std::optional<std::string> FindSessionKey(const CallContext& context) {
  if (std::optional<std::string> key = context.Value(kSessionHeader)) return key;
  for (const char* name : {"x-session-id", "session-id", "session_id", "x-session-affinity",
                           "x-claude-code-session-id"}) {
    const std::optional<std::string> text = context.Value(name);
    if (text && !text->empty()) return MakeSessionKey(*text);
  }
  return std::nullopt;
}

absl::Status ParseSessionKey(const CallContext& context, engine::SessionOptions& to) {
  std::optional<std::string> key = FindSessionKey(context);
  if (!key) return absl::OkStatus();
  if (!engine::IsSessionKey(*key)) {
    return absl::InvalidArgumentError(absl::StrCat(
        context.kind(), " ovq-session: expected one key of 1 to 64 characters A-Z a-z 0-9 _ -"));
  }
  to.key = *std::move(key);
  return absl::OkStatus();
}

template <class Message>
absl::StatusOr<engine::SessionOptions> ToSessionOptions(const Message& from,
                                                        const CallContext& context) {
  engine::SessionOptions to;
  RETURN_IF_ERROR(ParseSessionKey(context, to));
  to.variant = from.memory();
  if (from.has_max_centroids()) to.slot_cap = static_cast<int32_t>(from.max_centroids());
  if (from.has_ttl()) to.ttl = ToDuration(from.ttl());
  if (from.has_keep_tokens()) to.keep_tokens = from.keep_tokens();
  return to;
}
template absl::StatusOr<engine::SessionOptions> ToSessionOptions(const v1::CreateSessionRequest&,
                                                                 const CallContext&);
template absl::StatusOr<engine::SessionOptions> ToSessionOptions(const v1::ChatOpen&,
                                                                 const CallContext&);

// --- structs to answers ---

void Fill(absl::Duration from, google::protobuf::Duration& to) {
  absl::Duration rest;
  to.set_seconds(absl::IDivDuration(from, absl::Seconds(1), &rest));
  to.set_nanos(absl::ToInt64Nanoseconds(rest));
}

void Fill(const engine::ErrorFacts& from, v1::ErrorInfo& to) {
  to.set_field(from.field);
  if (from.reason) to.set_reason(engine::RejectReasonName(*from.reason));
  if (from.bytes_needed) to.set_bytes_needed(*from.bytes_needed);
  if (from.bytes_free) to.set_bytes_free(*from.bytes_free);
  if (from.retry_after) Fill(*from.retry_after, *to.mutable_retry_after());
  if (from.position) to.set_position(*from.position);
}

void Fill(const engine::Started& from, v1::Started& to) {
  to.set_session_id(from.session_id);
  to.set_prompt_tokens(from.prompt_tokens);
  to.set_cached_tokens(from.cached_tokens);
  to.set_seed(from.seed);
  to.set_position(from.position);
}

void Fill(const answers::AnswerPart& from, v1::AnswerPart& to) {
  using Kind = answers::AnswerPart::Kind;
  switch (from.kind) {
    case Kind::kContent:
      return to.set_content(from.text);
    case Kind::kReasoning:
      return to.set_reasoning(from.text);
    case Kind::kCall:
      return to.set_call(from.text);
    case Kind::kArguments:
      return to.set_arguments(from.text);
    case Kind::kCallEnd:
      return to.set_call_end(true);
  }
}

void Fill(const engine::TokenChunk& from, v1::TokenChunk& to) {
  to.set_text(from.text);
  to.mutable_token_ids()->Add(from.token_ids.begin(), from.token_ids.end());
  to.mutable_logprobs()->Add(from.logprobs.begin(), from.logprobs.end());
  for (const std::vector<model::TokenLogprob>& top : from.top) FillTop(top, *to.add_top());
  to.set_index(from.index);
  for (const answers::AnswerPart& part : from.parts) Fill(part, *to.add_parts());
}

void Fill(const engine::Finished& from, v1::Finished& to) {
  to.set_reason(ToProto(from.reason));
  to.set_index(from.index);
  to.set_matched_stop(from.matched_stop);
  if (from.matched_token_id.has_value()) {
    to.set_matched_token_id(*from.matched_token_id);
  }
  v1::Usage& usage = *to.mutable_usage();
  usage.set_prompt_tokens(from.usage.prompt_tokens);
  usage.set_cached_tokens(from.usage.cached_tokens);
  usage.set_generated_tokens(from.usage.generated_tokens);
  usage.set_reasoning_tokens(from.usage.reasoning_tokens);
  usage.set_state_bytes(from.usage.state_bytes);
  usage.set_position(from.usage.position);
  usage.set_merged_tokens(from.usage.merged_tokens);
  usage.set_drafted_tokens(from.usage.drafted_tokens);
  usage.set_accepted_tokens(from.usage.accepted_tokens);
  Fill(from.usage.queue_time, *usage.mutable_queue_time());
  Fill(from.usage.prefill_time, *usage.mutable_prefill_time());
  Fill(from.usage.decode_time, *usage.mutable_decode_time());
}

void Fill(const engine::SessionInfo& from, v1::Session& to) {
  to.set_session_id(from.id);
  to.set_position(from.position);
  to.set_memory(from.cache_policy);
  to.set_max_centroids(from.slot_cap);
  to.set_state_bytes(from.state_bytes);
  to.set_state_bytes_cap(from.state_bytes_cap);
  to.set_live_centroids(from.live_slots);
  to.set_keeps_tokens(from.keeps_tokens);
  to.set_durable(from.durable);
  to.set_hibernated(from.hibernated);
  if (from.damaged_at) to.set_damaged_at(*from.damaged_at);
  for (const engine::TurnEnd& turn : from.turns) {
    v1::TurnEnd& end = *to.add_turns();
    end.set_position(turn.position);
    end.set_replay_tokens(turn.replay_tokens);
  }
  to.set_busy(from.busy);
  FillTime(from.created, *to.mutable_created());
  FillTime(from.last_used, *to.mutable_last_used());
  FillTime(from.expires, *to.mutable_expires());
  to.set_prompt_tokens_total(from.prompt_tokens_total);
  to.set_generated_tokens_total(from.generated_tokens_total);
}

v1::ScoreResponse ToScoreResponse(const std::vector<int32_t>& tokens,
                                  const std::vector<model::TokenScore>& rows) {
  v1::ScoreResponse to;
  to.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  for (const model::TokenScore& row : rows) {
    if (row.logprob) to.add_logprobs(*row.logprob);
    if (!row.top.empty()) FillTop(row.top, *to.add_top());
  }
  return to;
}

}  // namespace ovq::server
