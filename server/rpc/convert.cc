#include "server/rpc/convert.h"

#include "absl/strings/str_cat.h"
#include "server/engine/error_facts.h"
#include "server/engine/validate.h"

namespace ovq {

std::vector<int32_t> TokenIds(const google::protobuf::RepeatedField<uint32_t>& ids) {
  return {ids.begin(), ids.end()};
}

absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, const std::string& text,
                                            bool add_bos, const std::string& field) {
  absl::StatusOr<std::vector<int32_t>> tokens = tokenizer.Encode(text, add_bos);
  if (tokens.ok()) return tokens;
  // The tokenizer's message may quote the text.
  return WithLogText(tokens.status(), absl::StrCat(field, ": cannot be encoded"));
}

absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::Prompt& prompt,
                                                  const std::string& prefix, bool at_start,
                                                  const Engine& engine) {
  switch (prompt.kind_case()) {
    case v1::Prompt::kText: {
      const std::string field = absl::StrCat(prefix, "prompt.text");
      const Tokenizer* tokenizer = engine.model().tokenizer;
      if (tokenizer == nullptr || !tokenizer->has_text()) return NoTokenizer(field);
      return Encode(*tokenizer, prompt.text(), at_start, field);
    }
    case v1::Prompt::kTokenIds: {
      const auto& ids = prompt.token_ids().ids();
      if (absl::Status status = CheckPromptLength(engine.options(), ids.size(), prefix);
          !status.ok()) {
        return status;
      }
      return TokenIds(ids);
    }
    case v1::Prompt::KIND_NOT_SET:
      break;
  }
  return std::vector<int32_t>();
}

void SetSampling(const v1::SamplingParams& from, GenerateRequest& to) {
  SamplingParams& params = to.sampling;
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

absl::Status SetStop(const v1::StopConditions& from, GenerateRequest& to) {
  absl::Status status = CheckStopStrings(from.stop_strings_size(), to.field_prefix);
  if (!status.ok()) return status;
  if (from.has_max_tokens()) to.stop.max_tokens = from.max_tokens();
  to.stop.min_tokens = from.min_tokens();
  to.stop.strings.assign(from.stop_strings().begin(), from.stop_strings().end());
  to.stop.token_ids = TokenIds(from.stop_token_ids());
  to.stop.ignore_eos = from.ignore_eos();
  to.stop.include_stop_text = from.include_stop_text();
  return status;
}

void SetOutput(const v1::OutputOptions& from, GenerateRequest& to) {
  to.output.logprobs = from.logprobs();
  to.output.top_logprobs = static_cast<int>(from.top_logprobs());
}

absl::Duration ToDuration(const google::protobuf::Duration& from) {
  constexpr int32_t kNanos = 1'000'000'000;
  if (from.nanos() <= -kNanos || from.nanos() >= kNanos) return absl::InfiniteDuration();  // none
  return absl::Seconds(from.seconds()) + absl::Nanoseconds(from.nanos());
}

}  // namespace ovq
