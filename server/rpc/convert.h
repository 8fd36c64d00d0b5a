// Between the messages of ovq.v1 and the engine's structs. Requests are only mapped: a value that
// the engine's type cannot hold arrives as one that is in no range, and the engine checks it with
// all others (server/engine/validate.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/engine.h"
#include "server/engine/request.h"

namespace ovq {

// --- requests to structs ---

// Tokenizer::Encode, whose error may quote the text: the log gets the field's name alone.
absl::StatusOr<std::vector<int32_t>> Encode(const Tokenizer& tokenizer, const std::string& text,
                                            bool add_bos, const std::string& field);
// Token ids of a prompt; absent gives none. at_start: the model's beginning-of-sequence token goes
// before text. Errors: text without a tokenizer, a prompt beyond the limit; `prefix` begins the
// name of the field.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::Prompt& prompt,
                                                  const std::string& prefix, bool at_start,
                                                  const Engine& engine);
void SetSampling(const v1::SamplingParams& from, GenerateRequest& to);
// Too many strings are refused before they are copied.
absl::Status SetStop(const v1::StopConditions& from, GenerateRequest& to);
void SetOutput(const v1::OutputOptions& from, GenerateRequest& to);
std::vector<int32_t> TokenIds(const google::protobuf::RepeatedField<uint32_t>& ids);
// What CreateSessionRequest and ChatOpen have in common.
template <class Message>
SessionOptions ToSessionOptions(const Message& from);
absl::Duration ToDuration(const google::protobuf::Duration& from);

// --- structs to answers ---
void Fill(const Started& from, v1::Started& to);
void Fill(const TokenChunk& from, v1::TokenChunk& to);
void Fill(const Finished& from, v1::Finished& to);
void Fill(const SessionInfo& from, v1::Session& to);
void Fill(absl::Duration from, google::protobuf::Duration& to);
v1::ScoreResponse ToScoreResponse(const std::vector<int32_t>& tokens,
                                  const std::vector<RowScore>& rows);

template <class Message>
SessionOptions ToSessionOptions(const Message& from) {
  SessionOptions to;
  if (from.has_max_centroids()) to.slot_cap = static_cast<int32_t>(from.max_centroids());
  if (from.has_ttl()) to.ttl = ToDuration(from.ttl());
  return to;
}

}  // namespace ovq
