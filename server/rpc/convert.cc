#include "server/rpc/convert.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace ovq {
namespace {

absl::Status Bad(const std::string& path, absl::string_view name, absl::string_view expected,
                 const absl::AlphaNum& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, name, ": expected ", expected, ", got ", got));
}

// A number's range and how it is written; NaN is in none.
struct Range {
  float low, high;
  bool low_included;
  const char* text;
};

absl::Status SetFloat(bool present, float value, const std::string& path, absl::string_view name,
                      const Range& range, float& to) {
  if (!present) return absl::OkStatus();
  const bool above = range.low_included ? value >= range.low : value > range.low;
  if (!above || !(value <= range.high)) return Bad(path, name, range.text, value);
  to = value;
  return absl::OkStatus();
}

absl::Status CheckVocabulary(uint32_t id, const std::string& path, absl::string_view name,
                             int64_t vocab_size) {
  if (id < vocab_size) return absl::OkStatus();
  return Bad(path, name, absl::StrCat("a token id below ", vocab_size), id);
}

absl::Status TooLong(const std::string& path, size_t tokens, const RequestLimits& limits) {
  return Bad(path, "prompt",
             absl::StrCat("at most ", limits.max_prompt_tokens, " tokens (--max-prompt-tokens)"),
             tokens);
}

absl::Status NoTokenizer(const std::string& path, absl::string_view name) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, name, ": this model has no tokenizer, expected token ids"));
}

}  // namespace

RequestLimits RequestLimits::Of(const Engine& engine) {
  return {.vocab_size = engine.model().vocab_size,
          .max_prompt_tokens = engine.options().max_prompt_tokens,
          .max_slot_cap = engine.options().max_slot_cap,
          .has_dictionary = engine.model().default_slot_cap > 0,
          .tokenizer = engine.model().tokenizer};
}

absl::StatusOr<std::vector<int32_t>> ToTokenIds(
    const google::protobuf::RepeatedField<uint32_t>& ids, const std::string& path,
    int64_t vocab_size) {
  std::vector<int32_t> tokens;
  tokens.reserve(ids.size());
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] >= vocab_size) {
      return CheckVocabulary(ids[i], path, absl::StrCat("[", i, "]"), vocab_size);
    }
    tokens.push_back(static_cast<int32_t>(ids[i]));
  }
  return tokens;
}

absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::Prompt& prompt, const std::string& path,
                                                  bool at_start, const RequestLimits& limits) {
  switch (prompt.kind_case()) {
    case v1::Prompt::kText: {
      if (!limits.has_text()) return NoTokenizer(path, "prompt.text");
      absl::StatusOr<std::vector<int32_t>> tokens =
          limits.tokenizer->Encode(prompt.text(), at_start);
      if (tokens.ok() && static_cast<int64_t>(tokens->size()) > limits.max_prompt_tokens) {
        return TooLong(path, tokens->size(), limits);
      }
      return tokens;
    }
    case v1::Prompt::kTokenIds: {
      const auto& ids = prompt.token_ids().ids();
      if (ids.size() > limits.max_prompt_tokens) return TooLong(path, ids.size(), limits);
      return ToTokenIds(ids, absl::StrCat(path, "prompt.token_ids.ids"), limits.vocab_size);
    }
    case v1::Prompt::KIND_NOT_SET:
      break;
  }
  return std::vector<int32_t>();
}

absl::Status CheckNotEmpty(const std::vector<int32_t>& tokens, const std::string& path) {
  if (!tokens.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, "prompt: expected at least one token, got none"));
}

absl::Status SetSampling(const v1::SamplingParams& from, const std::string& path,
                         const RequestLimits& limits, GenerateRequest& to) {
  const std::string at = absl::StrCat(path, "sampling.");
  SamplingParams& params = to.sampling;
  for (const absl::Status& status :
       {SetFloat(from.has_temperature(), from.temperature(), at, "temperature",
                 {0, 100, true, "[0, 100]"}, params.temperature),
        SetFloat(from.has_top_p(), from.top_p(), at, "top_p", {0, 1, false, "(0, 1]"},
                 params.top_p),
        SetFloat(from.has_min_p(), from.min_p(), at, "min_p", {0, 1, true, "[0, 1]"}, params.min_p),
        SetFloat(from.has_typical_p(), from.typical_p(), at, "typical_p", {0, 1, false, "(0, 1]"},
                 params.typical_p),
        SetFloat(from.has_repetition_penalty(), from.repetition_penalty(), at, "repetition_penalty",
                 {0, 100, false, "(0, 100]"}, params.repetition_penalty),
        SetFloat(from.has_presence_penalty(), from.presence_penalty(), at, "presence_penalty",
                 {-2, 2, true, "[-2, 2]"}, params.presence_penalty),
        SetFloat(from.has_frequency_penalty(), from.frequency_penalty(), at, "frequency_penalty",
                 {-2, 2, true, "[-2, 2]"}, params.frequency_penalty)}) {
    if (!status.ok()) return status;
  }
  if (from.top_k() > static_cast<uint32_t>(std::numeric_limits<int32_t>::max())) {
    return Bad(at, "top_k", "at most 2147483647", from.top_k());
  }
  params.top_k = static_cast<int32_t>(from.top_k());
  params.seed = from.seed();
  to.seed_given = from.has_seed();
  for (const auto& [id, bias] : from.logit_bias()) {
    if (absl::Status status = CheckVocabulary(id, at, "logit_bias", limits.vocab_size);
        !status.ok()) {
      return status;
    }
    if (!(bias >= -100 && bias <= 100)) {
      return Bad(at, absl::StrCat("logit_bias[", id, "]"), "[-100, 100]", bias);
    }
    params.logit_bias[static_cast<int32_t>(id)] = bias;
  }
  const uint32_t n = from.has_n() ? from.n() : 1;
  if (n < 1 || n > kMaxCompletions) {
    return Bad(at, "n", absl::StrCat("1 to ", kMaxCompletions), n);
  }
  if (n > 1 && !to.session_id.empty()) return Bad(at, "n", "1 with a session", n);
  to.n = static_cast<int>(n);
  return absl::OkStatus();
}

absl::Status SetStop(const v1::StopConditions& from, const std::string& path,
                     const RequestLimits& limits, GenerateRequest& to) {
  const std::string at = absl::StrCat(path, "stop.");
  if (from.has_max_tokens()) to.stop.max_tokens = from.max_tokens();
  to.stop.min_tokens = from.min_tokens();
  if (to.stop.min_tokens > to.stop.max_tokens) {
    return Bad(at, "min_tokens", absl::StrCat("at most max_tokens, ", to.stop.max_tokens),
               to.stop.min_tokens);
  }
  const int n_strings = from.stop_strings_size();
  if (n_strings > static_cast<int>(kMaxStopStrings)) {
    return Bad(at, "stop_strings", absl::StrCat("at most ", kMaxStopStrings), n_strings);
  }
  if (n_strings > 0 && !limits.has_text()) return NoTokenizer(at, "stop_strings");
  for (int i = 0; i < n_strings; ++i) {
    const size_t bytes = from.stop_strings(i).size();
    if (bytes < 1 || bytes > kMaxStopBytes) {
      return Bad(at, absl::StrCat("stop_strings[", i, "]"),
                 absl::StrCat("1 to ", kMaxStopBytes, " bytes"), bytes);
    }
    to.stop.strings.push_back(from.stop_strings(i));
  }
  absl::StatusOr<std::vector<int32_t>> ids =
      ToTokenIds(from.stop_token_ids(), absl::StrCat(at, "stop_token_ids"), limits.vocab_size);
  if (!ids.ok()) return ids.status();
  to.stop.token_ids = *std::move(ids);
  to.stop.ignore_eos = from.ignore_eos();
  to.stop.include_stop_text = from.include_stop_text();
  return absl::OkStatus();
}

absl::Status SetOutput(const v1::OutputOptions& from, const std::string& path,
                       const RequestLimits& limits, GenerateRequest& to) {
  const int64_t most = std::min<int64_t>(kMaxTopLogprobs, limits.vocab_size);
  if (from.top_logprobs() > most) {
    return Bad(path, "output.top_logprobs", absl::StrCat("at most ", most), from.top_logprobs());
  }
  to.output.logprobs = from.logprobs();
  to.output.top_logprobs = static_cast<int>(from.top_logprobs());
  return absl::OkStatus();
}

absl::StatusOr<int32_t> ToSlotCap(uint32_t value, const std::string& path,
                                  const RequestLimits& limits) {
  if (!limits.has_dictionary) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, "max_centroids: this model has no growing dictionary"));
  }
  if (value < 2 || value > static_cast<uint32_t>(limits.max_slot_cap)) {
    return Bad(path, "max_centroids",
               absl::StrCat("2 to ", limits.max_slot_cap, " (--max-centroids)"), value);
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<absl::Duration> ToTtl(const google::protobuf::Duration& ttl,
                                     const std::string& path) {
  constexpr int32_t kNanos = 1000000000;
  const absl::Duration value = absl::Seconds(ttl.seconds()) + absl::Nanoseconds(ttl.nanos());
  const bool valid = ttl.nanos() > -kNanos && ttl.nanos() < kNanos;
  if (!valid || value <= absl::ZeroDuration() || value > absl::Seconds(kMaxTtlSeconds)) {
    return Bad(path, "ttl", "a duration above 0 and at most 366 days",
               absl::StrCat(ttl.seconds(), " s ", ttl.nanos(), " ns"));
  }
  return value;
}

absl::StatusOr<ScoreRequest> ToScoreRequest(const v1::ScoreRequest& from,
                                            const RequestLimits& limits) {
  ScoreRequest to;
  absl::StatusOr<std::vector<int32_t>> tokens =
      PromptTokens(from.prompt(), "", /*at_start=*/true, limits);
  if (!tokens.ok()) return tokens.status();
  to.tokens = *std::move(tokens);
  if (absl::Status status = CheckNotEmpty(to.tokens, ""); !status.ok()) return status;
  if (from.has_max_centroids()) {
    absl::StatusOr<int32_t> cap = ToSlotCap(from.max_centroids(), "", limits);
    if (!cap.ok()) return cap.status();
    to.slot_cap = *cap;
  }
  if (from.top_logprobs() > limits.vocab_size) {
    return Bad("", "top_logprobs", absl::StrCat("at most the vocabulary's ", limits.vocab_size),
               from.top_logprobs());
  }
  // An id takes at most 5 bytes and a log-probability 4.
  const size_t most = kMaxAnswerBytes / 9 / to.tokens.size();
  if (from.top_logprobs() > most) {
    return Bad("", "top_logprobs",
               absl::StrCat("at most ", most, " for ", to.tokens.size(),
                            " tokens, so that the answer stays below 1 GiB"),
               from.top_logprobs());
  }
  to.top_logprobs = static_cast<int>(from.top_logprobs());
  return to;
}

}  // namespace ovq
