#include "server/engine/common/validate.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "model/state_check.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"

namespace ovq::engine {
namespace {

// Counts are unsigned in the API: one beyond int32 arrives here as a negative number.
uint32_t AsSent(int32_t value) { return static_cast<uint32_t>(value); }

// BadField, unless the field is good.
absl::Status Expect(bool good, absl::string_view field, absl::string_view expected,
                    const absl::AlphaNum& got) {
  return good ? absl::OkStatus() : BadField(field, expected, got);
}

absl::Status CheckMessage(const jinja::ChatMessage& message, const std::string& path) {
  const auto expect_most = [&](int64_t size, int64_t most, const std::string& field,
                               const char* unit = " bytes") {
    return Expect(size <= most, absl::StrCat(path, ".", field),
                  absl::StrCat("at most ", most, unit), size);
  };
  const int64_t bytes = std::ssize(message.role);
  RETURN_IF_ERROR(Expect(bytes >= 1 && bytes <= kMaxRoleBytes, path + ".role",
                         absl::StrCat("1 to ", kMaxRoleBytes, " bytes"), bytes));
  RETURN_IF_ERROR(expect_most(std::ssize(message.tool_call_id), kMaxToolNameBytes, "tool_call_id"));
  RETURN_IF_ERROR(expect_most(std::ssize(message.name), kMaxToolNameBytes, "name"));
  const std::vector<jinja::ToolCall>& calls = message.tool_calls;
  RETURN_IF_ERROR(expect_most(std::ssize(calls), kMaxToolCalls, "tool_calls", ""));
  RETURN_IF_ERROR(Expect(calls.empty() || message.role == "assistant", path + ".tool_calls",
                         "them in messages of role \"assistant\" only", "them"));
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string call = absl::StrCat("tool_calls[", i, "]");
    RETURN_IF_ERROR(expect_most(std::ssize(calls[i].id), kMaxToolNameBytes, call + ".id"));
    RETURN_IF_ERROR(expect_most(std::ssize(calls[i].name), kMaxToolNameBytes, call + ".name"));
    RETURN_IF_ERROR(Expect(!calls[i].name.empty(), absl::StrCat(path, ".", call, ".name"),
                           "the name of a tool", "none"));
  }
  return absl::OkStatus();
}

bool HasText(const EngineModel& model) {
  return model.tokenizer != nullptr && model.tokenizer->has_text();
}

std::string TokenIdBelow(int64_t vocab_size) {
  return absl::StrCat("a token id below ", vocab_size);
}

absl::Status CheckSampling(const model::SamplingParams& sampling, int64_t vocab_size,
                           const std::string& at) {
  const struct {
    const char* name;
    float value;
    const FloatRange& range;
  } numbers[] = {
      {"temperature", sampling.temperature, kTemperatureRange},
      {"top_p", sampling.top_p, kTopPRange},
      {"min_p", sampling.min_p, kMinPRange},
      {"typical_p", sampling.typical_p, kTypicalPRange},
      {"repetition_penalty", sampling.repetition_penalty, kRepetitionPenaltyRange},
      {"presence_penalty", sampling.presence_penalty, kPresencePenaltyRange},
      {"frequency_penalty", sampling.frequency_penalty, kFrequencyPenaltyRange},
  };
  for (const auto& [name, value, range] : numbers) {
    RETURN_IF_ERROR(Expect(range.Has(value), absl::StrCat(at, name), range.Text(), value));
  }
  RETURN_IF_ERROR(Expect(sampling.top_k >= 0, absl::StrCat(at, "top_k"),
                         absl::StrCat("at most ", kMaxTopK), AsSent(sampling.top_k)));
  for (const auto& [id, bias] : sampling.logit_bias) {
    const std::string field = absl::StrCat(at, "logit_bias");
    if (id < 0 || id >= vocab_size) return BadField(field, TokenIdBelow(vocab_size), AsSent(id));
    if (!kLogitBiasRange.Has(bias)) {
      return BadField(field, kLogitBiasRange.Text(), bias, absl::StrCat("[", id, "]"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStop(const EngineModel& model, const StopConditions& stop,
                       const std::string& prefix) {
  const std::string at = absl::StrCat(prefix, "stop.");
  RETURN_IF_ERROR(
      Expect(stop.max_tokens >= 0, absl::StrCat(at, "max_tokens"), "at least 0", stop.max_tokens));
  RETURN_IF_ERROR(Expect(stop.min_tokens >= 0 && stop.min_tokens <= stop.max_tokens,
                         absl::StrCat(at, "min_tokens"),
                         absl::StrCat("at most max_tokens, ", stop.max_tokens), stop.min_tokens));
  const std::string strings = absl::StrCat(at, "stop_strings");
  const int64_t n_strings = std::ssize(stop.strings);
  if (n_strings > 0 && !HasText(model)) return ModelLacks(strings, "tokenizer");
  for (int64_t i = 0; i < n_strings; ++i) {
    const int64_t bytes = std::ssize(stop.strings[i]);
    RETURN_IF_ERROR(Expect(bytes >= 1 && bytes <= kMaxStopStringBytes,
                           absl::StrCat(strings, "[", i, "]"),
                           absl::StrCat("1 to ", kMaxStopStringBytes, " bytes"), bytes));
  }
  return CheckTokenIds(stop.token_ids, model.vocab_size, absl::StrCat(at, "stop_token_ids"));
}

absl::Status CheckTopLogprobs(int top_logprobs, int64_t most, const std::string& path) {
  return Expect(top_logprobs >= 0 && top_logprobs <= most, path, absl::StrCat("at most ", most),
                AsSent(top_logprobs));
}

absl::Status CheckPrompt(const EngineConfig& config, std::span<const int32_t> tokens,
                         const std::string& prefix) {
  RETURN_IF_ERROR(CheckPromptLength(config, std::ssize(tokens), prefix));
  return CheckTokenIds(tokens, config.model.vocab_size,
                       absl::StrCat(prefix, "prompt.token_ids.ids"));
}

absl::Status CheckToken(int64_t token, int64_t vocab_size, const std::string& where) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return DamagedFile(where, " is ", token, ", expected 0 to ", vocab_size - 1);
}

}  // namespace

absl::Status CheckTtl(const EngineConfig& config, const std::optional<absl::Duration>& ttl,
                      const std::string& prefix) {
  if (!ttl) return absl::OkStatus();
  const absl::Duration most = config.options.max_session_ttl;
  return Expect(*ttl > absl::ZeroDuration() && *ttl <= most, absl::StrCat(prefix, "ttl"),
                absl::StrCat("a duration above 0 and at most ", absl::FormatDuration(most),
                             " (--max-session-ttl)"),
                absl::FormatDuration(*ttl));
}

absl::Status EmptyPrompt(const std::string& prefix) {
  return BadField(absl::StrCat(prefix, "prompt"), "at least one token", "none");
}

absl::Status ModelLacks(const std::string& path, const char* part) {
  return WithFacts(absl::FailedPreconditionError(absl::StrCat(path, ": this model has no ", part)),
                   {.field = path});
}

absl::Status CheckVariant(const EngineConfig& config, const std::string& variant,
                          std::optional<int32_t> slot_cap, const std::string& prefix) {
  const ModelVariant* found = config.model.FindVariant(variant);
  if (found == nullptr) {
    std::string names;
    for (const ModelVariant& one : config.model.variants) {
      absl::StrAppend(&names, names.empty() ? "one of " : ", ", one.name);
    }
    return BadField(absl::StrCat(prefix, "memory"), absl::StrCat(names, " (--memory)"),
                    Quoted(variant));
  }
  if (!slot_cap) return absl::OkStatus();
  const std::string field = absl::StrCat(prefix, "max_centroids");
  if (!found->layout->has_slot_cap()) {
    return BadField(field, "none, as no layer has a growing dictionary", AsSent(*slot_cap));
  }
  const int32_t most = config.options.max_slot_cap;
  return Expect(*slot_cap >= kernels::kMinSlotCap && *slot_cap <= most, field,
                absl::StrCat(kernels::kMinSlotCap, " to ", most, " (--max-centroids)"),
                AsSent(*slot_cap));
}

absl::Status CheckTokenIds(std::span<const int32_t> ids, int64_t vocab_size,
                           const std::string& path) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return BadField(absl::StrCat(path, "[", i, "]"), TokenIdBelow(vocab_size), AsSent(ids[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckPromptLength(const EngineConfig& config, int64_t n_tokens,
                               const std::string& prefix) {
  const int64_t most = config.options.max_prompt_tokens;
  return Expect(n_tokens <= most, absl::StrCat(prefix, "prompt"),
                absl::StrCat("at most ", most, " tokens (--max-prompt-tokens)"), n_tokens);
}

absl::Status CheckTextBytes(const EngineConfig& config, size_t bytes, const std::string& path) {
  const auto most = static_cast<size_t>(config.options.max_prompt_tokens * kMaxBytesPerToken);
  return Expect(
      bytes <= most, path,
      absl::StrCat("at most ", most, " bytes, ", kMaxBytesPerToken, " times --max-prompt-tokens"),
      bytes);
}

absl::Status CheckListSizes(const ListSizes& sizes, const std::string& prefix) {
  const struct {
    const char* name;
    int64_t size, most;
  } lists[] = {
      {"stop.stop_strings", sizes.stop_strings, kMaxStopStrings},
      {"stop.stop_token_ids", sizes.stop_token_ids, kMaxStopTokenIds},
      {"sampling.logit_bias", sizes.logit_bias, kMaxLogitBias},
  };
  for (const auto& [name, size, most] : lists) {
    RETURN_IF_ERROR(
        Expect(size <= most, absl::StrCat(prefix, name), absl::StrCat("at most ", most), size));
  }
  return absl::OkStatus();
}

absl::Status CheckMessageCount(int64_t n_messages, const std::string& path) {
  return Expect(n_messages >= 1 && n_messages <= kMaxMessages, absl::StrCat(path, ".messages"),
                absl::StrCat("1 to ", kMaxMessages), n_messages);
}

absl::Status CheckToolsBytes(int64_t bytes, const std::string& path) {
  return Expect(bytes <= kMaxToolsBytes, absl::StrCat(path, ".tools_json"),
                absl::StrCat("at most ", kMaxToolsBytes, " bytes"), bytes);
}

absl::Status CheckConversation(std::span<const jinja::ChatMessage> messages, int64_t known,
                               const ConversationBytes& bytes, const std::string& path) {
  const int64_t n_messages = std::ssize(messages);
  for (int64_t i = 0; i < n_messages; ++i) {
    RETURN_IF_ERROR(CheckMessage(messages[i], absl::StrCat(path, ".messages[", i, "]")));
  }
  RETURN_IF_ERROR(CheckToolsBytes(bytes.tools, path));
  RETURN_IF_ERROR(Expect(bytes.args <= kMaxTemplateArgsBytes,
                         absl::StrCat(path, ".template_args_json"),
                         absl::StrCat("at most ", kMaxTemplateArgsBytes, " bytes"), bytes.args));
  return Expect(known <= n_messages, absl::StrCat(path, ".known"),
                absl::StrCat("at most the ", n_messages, " messages"), known);
}

absl::Status CheckSessionId(const std::string& id, const std::string& prefix) {
  return Expect(!id.empty(), absl::StrCat(prefix, "session_id"), "a session's id", "none");
}

absl::Status CheckSessionBase(uint64_t length, size_t digest_bytes, const std::string& path) {
  RETURN_IF_ERROR(Expect(length <= kMaxInfoPosition, absl::StrCat(path, "length"),
                         absl::StrCat("0 to ", kMaxInfoPosition), length));
  return Expect(digest_bytes == kDigestBytes, absl::StrCat(path, "digest"),
                absl::StrCat(kDigestBytes, " bytes"), digest_bytes);
}

absl::Status CheckPageSize(int32_t page_size) {
  return Expect(page_size >= 0 && page_size <= kMaxPageSize, "page_size",
                absl::StrCat("at most ", kMaxPageSize), AsSent(page_size));
}

absl::Status CheckInfoPositions(std::span<const uint64_t> positions) {
  RETURN_IF_ERROR(Expect(positions.size() <= kMaxInfoPositions, "positions",
                         absl::StrCat("at most ", kMaxInfoPositions), positions.size()));
  for (size_t i = 0; i < positions.size(); ++i) {
    RETURN_IF_ERROR(Expect(positions[i] <= kMaxInfoPosition, absl::StrCat("positions[", i, "]"),
                           absl::StrCat("at most ", kMaxInfoPosition), positions[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckPosition(const model::StateLayout& layout, int64_t position) {
  const int64_t limit = layout.limits().max_unbounded_tokens;
  if (!layout.has_unbounded() || position <= limit) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrCat("position ", position, " is beyond the ", limit,
                                            " tokens that full-attention layers can hold"));
}

absl::Status ValidateGenerate(const EngineConfig& config, const GenerateRequest& request) {
  const std::string& prefix = request.field_prefix;
  const bool one_shot = request.session_id.empty();
  const std::string at = absl::StrCat(prefix, "sampling.");
  absl::Status status;  // first error (Status::Update)
  if (one_shot) {
    status = CheckVariant(config, request.variant, request.slot_cap, prefix);
  } else if (!request.variant.empty()) {
    status = BadField("memory", "none with session_id", Quoted(request.variant));
  } else if (request.slot_cap) {
    status = BadField("max_centroids", "none with session_id", AsSent(*request.slot_cap));
  }
  if (!status.ok()) return status;
  status.Update(CheckListSizes({.stop_strings = std::ssize(request.stop.strings),
                                .stop_token_ids = std::ssize(request.stop.token_ids),
                                .logit_bias = std::ssize(request.sampling.logit_bias)},
                               prefix));
  status.Update(CheckSampling(request.sampling, config.model.vocab_size, at));
  const int most = one_shot ? kMaxCompletions : 1;
  status.Update(Expect(request.n >= 1 && request.n <= most, absl::StrCat(at, "n"),
                       one_shot ? absl::StrCat("1 to ", most) : "1 with a session",
                       AsSent(request.n)));
  status.Update(CheckStop(config.model, request.stop, prefix));
  if (request.constraint != nullptr && config.model.vocabulary == nullptr) {
    status.Update(ModelLacks(absl::StrCat(prefix, "constraint"), "tokenizer"));
  }
  if (const auto how = request.output.speculation; how && !IsKnown(*how)) {
    status.Update(BadField(absl::StrCat(prefix, "output.speculation"), "0 to 2", int(*how)));
  }
  status.Update(CheckTopLogprobs(request.output.top_logprobs,
                                 std::min(kMaxTopLogprobs, config.model.vocab_size),
                                 absl::StrCat(prefix, "output.top_logprobs")));
  if (one_shot && request.prompt.empty()) status.Update(EmptyPrompt(prefix));
  if (one_shot && request.expected_position) {
    status.Update(BadField(absl::StrCat(prefix, "expected_position"), "none without session_id",
                           *request.expected_position));
  }
  status.Update(CheckPrompt(config, request.prompt, prefix));
  if (one_shot) {
    status.Update(CheckPosition(*config.model.FindVariant(request.variant)->layout,
                                static_cast<int64_t>(request.prompt.size())));
  }
  return status;
}

absl::Status ValidateScore(const EngineConfig& config, const ScoreRequest& request) {
  if (request.prompt.empty()) return EmptyPrompt("");
  RETURN_IF_ERROR(CheckVariant(config, request.variant, request.slot_cap, ""));
  RETURN_IF_ERROR(CheckPrompt(config, request.prompt, ""));
  RETURN_IF_ERROR(CheckTopLogprobs(request.top_logprobs, config.model.vocab_size, "top_logprobs"));
  RETURN_IF_ERROR(CheckPosition(*config.model.FindVariant(request.variant)->layout,
                                std::ssize(request.prompt)));
  // On the wire an id takes up to 5 bytes and a log-probability 4; in memory each list adds its
  // vector.
  constexpr size_t kPerEntry = 9,
                   kPerToken = sizeof(float) + sizeof(std::vector<model::TokenLogprob>);
  const size_t room = kMaxAnswerBytes / request.prompt.size();
  const size_t most = room > kPerToken ? (room - kPerToken) / kPerEntry : 0;
  return Expect(
      static_cast<size_t>(request.top_logprobs) <= most, "top_logprobs",
      absl::StrCat("at most ", most, " for ", request.prompt.size(),
                   " tokens, so that the answer stays below ", kMaxAnswerBytes >> 20, " MiB"),
      request.top_logprobs);
}

absl::Status ValidateFork(const EngineConfig& config, const ForkOptions& fork) {
  RETURN_IF_ERROR(Expect(fork.count >= 1 && fork.count <= kMaxForks, "count",
                         absl::StrCat("1 to ", kMaxForks), fork.count));
  return CheckTtl(config, fork.ttl, "");
}

absl::Status ValidateSession(const EngineConfig& config, const SessionOptions& session) {
  const std::string& prefix = session.field_prefix;
  RETURN_IF_ERROR(CheckVariant(config, session.variant, session.slot_cap, prefix));
  RETURN_IF_ERROR(CheckTtl(config, session.ttl, prefix));
  RETURN_IF_ERROR(CheckPrompt(config, session.prompt, prefix));
  return CheckPosition(*config.model.FindVariant(session.variant)->layout,
                       std::ssize(session.prompt));
}

absl::Status CheckSessionFits(const SessionImage& image, std::string_view model_fingerprint,
                              const model::StateLayout& layout, int64_t vocab_size) {
  if (image.model_fingerprint != model_fingerprint) {
    return UnfitFile("of the model ", absl::CHexEscape(image.model_fingerprint),
                     ", but this server has ", std::string(model_fingerprint));
  }
  if (image.layout_fingerprint != layout.fingerprint()) {
    return UnfitFile("states are laid out as ",
                     absl::Hex(image.layout_fingerprint, absl::kZeroPad16), ", but here as ",
                     absl::Hex(layout.fingerprint(), absl::kZeroPad16),
                     ": expected a server with the same --state-dtype");
  }
  const int64_t least = layout.has_slot_cap() ? kernels::kMinSlotCap : 0;
  const int64_t most = layout.has_slot_cap() ? layout.limits().max_slot_cap : 0;
  if (image.slot_cap < least || image.slot_cap > most) {
    return UnfitFile("slot cap ", image.slot_cap, ", this server takes ", least, " to ", most);
  }
  const int64_t last = layout.has_unbounded() ? layout.limits().max_unbounded_tokens
                                              : static_cast<int64_t>(kMaxInfoPosition);
  if (image.position < 0 || image.position > last) {
    return UnfitFile("position ", image.position, ", this server takes 0 to ", last);
  }
  if (image.unread < 0 || image.unread > last - image.position) {
    return UnfitFile(image.unread, " tokens behind position ", image.position,
                     ", this server takes 0 to ", last - image.position);
  }
  const size_t bytes = layout.live_bytes_at(image.position, image.slot_cap);
  if (image.state_bytes != bytes) {
    return DamagedFile("a state of ", image.state_bytes, " bytes, expected ", bytes,
                       " at position ", image.position);
  }
  absl::Status status;
  if (image.pending) status = CheckToken(*image.pending, vocab_size, "the token that waits");
  for (size_t i = 0; image.tokens && i < image.tokens->size() && status.ok(); ++i) {
    status = CheckToken((*image.tokens)[i], vocab_size, absl::StrCat("token ", i));
  }
  return status;
}

absl::Status CheckSessionState(const SessionImage& image, const model::StateLayout& layout,
                               const std::byte* base) {
  const absl::Status status = base == nullptr
                                  ? model::CheckState(layout, image.position, image.slot_cap,
                                                      std::as_bytes(std::span(image.state)))
                                  : model::CheckState(layout, image.position, image.slot_cap, base);
  return status.ok() ? status : DamagedFile(std::string(status.message()));
}

}  // namespace ovq::engine
