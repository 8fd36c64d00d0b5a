#include "server/rpc/convert.h"

namespace ovq {
namespace {

void Fill(absl::Time from, google::protobuf::Timestamp& to) {
  // Rounded down, so that the nanoseconds are never negative.
  const int64_t seconds = absl::ToUnixSeconds(from);
  to.set_seconds(seconds);
  to.set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(from - absl::FromUnixSeconds(seconds))));
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    // These two end the call with a status.
    case FinishReason::kDeadline:
    case FinishReason::kError:
      break;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void Fill(const std::vector<TokenLogprob>& from, v1::TopLogprobs& to) {
  to.mutable_token_ids()->Reserve(static_cast<int>(from.size()));
  to.mutable_logprobs()->Reserve(static_cast<int>(from.size()));
  for (const TokenLogprob& entry : from) {
    to.add_token_ids(static_cast<uint32_t>(entry.token_id));
    to.add_logprobs(entry.logprob);
  }
}

}  // namespace

void Fill(absl::Duration from, google::protobuf::Duration& to) {
  absl::Duration rest;
  to.set_seconds(absl::IDivDuration(from, absl::Seconds(1), &rest));
  to.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(rest)));
}

void Fill(const Started& from, v1::Started& to) {
  to.set_session_id(from.session_id);
  to.set_prompt_tokens(static_cast<uint64_t>(from.prompt_tokens));
  to.set_cached_tokens(static_cast<uint64_t>(from.cached_tokens));
  to.set_seed(from.seed);
}

void Fill(const TokenChunk& from, v1::TokenChunk& to) {
  to.set_text(from.text);
  to.mutable_token_ids()->Add(from.token_ids.begin(), from.token_ids.end());
  to.mutable_logprobs()->Add(from.logprobs.begin(), from.logprobs.end());
  for (const std::vector<TokenLogprob>& top : from.top) Fill(top, *to.add_top());
  to.set_index(static_cast<uint32_t>(from.index));
}

void Fill(const Finished& from, v1::Finished& to) {
  to.set_reason(ToProto(from.reason));
  to.set_index(static_cast<uint32_t>(from.index));
  to.set_matched_stop(from.matched_stop);
  if (from.matched_token_id.has_value()) {
    to.set_matched_token_id(static_cast<uint32_t>(*from.matched_token_id));
  }
  v1::Usage& usage = *to.mutable_usage();
  usage.set_prompt_tokens(static_cast<uint64_t>(from.usage.prompt_tokens));
  usage.set_cached_tokens(static_cast<uint64_t>(from.usage.cached_tokens));
  usage.set_generated_tokens(static_cast<uint64_t>(from.usage.generated_tokens));
  usage.set_state_bytes(static_cast<uint64_t>(from.usage.state_bytes));
  usage.set_position(static_cast<uint64_t>(from.usage.position));
  Fill(from.usage.queue_time, *usage.mutable_queue_time());
  Fill(from.usage.prefill_time, *usage.mutable_prefill_time());
  Fill(from.usage.decode_time, *usage.mutable_decode_time());
}

void Fill(const SessionInfo& from, v1::Session& to) {
  to.set_session_id(from.id);
  to.set_position(static_cast<uint64_t>(from.position));
  to.set_max_centroids(static_cast<uint32_t>(from.slot_cap));
  to.set_state_bytes(from.state_bytes);
  to.set_state_bytes_cap(from.state_bytes_cap);
  to.set_live_centroids(static_cast<uint64_t>(from.live_slots));
  to.set_busy(from.busy);
  Fill(from.created, *to.mutable_created());
  Fill(from.last_used, *to.mutable_last_used());
  Fill(from.expires, *to.mutable_expires());
  to.set_prompt_tokens_total(static_cast<uint64_t>(from.prompt_tokens_total));
  to.set_generated_tokens_total(static_cast<uint64_t>(from.generated_tokens_total));
}

v1::ScoreResponse ToScoreResponse(const std::vector<int32_t>& tokens,
                                  const std::vector<RowScore>& rows) {
  v1::ScoreResponse to;
  to.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  for (const RowScore& row : rows) {
    if (row.logprob) to.add_logprobs(*row.logprob);
    if (!row.top.empty()) Fill(row.top, *to.add_top());
  }
  return to;
}

}  // namespace ovq
