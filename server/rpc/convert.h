// Between the messages of ovq.v1 and the engine's structs. Every error names the field by its path
// in the request, what was expected, and what came.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ovq/v1/inference.pb.h"
#include "server/engine/engine.h"
#include "server/engine/request.h"

namespace ovq {

inline constexpr uint32_t kMaxCompletions = 64;  // sampling.n
inline constexpr uint32_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 1024;      // of one stop string
inline constexpr uint32_t kMaxTopLogprobs = 1024;  // of Generate and Chat
inline constexpr int64_t kMaxTtlSeconds = 366 * 86400;
inline constexpr size_t kMaxAnswerBytes = size_t{1} << 30;

// What a request is checked against.
struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_prompt_tokens = 0;
  int32_t max_slot_cap = 0;
  bool has_dictionary = false;
  const Tokenizer* tokenizer = nullptr;  // null: token ids only

  static RequestLimits Of(const Engine& engine);
  bool has_text() const { return tokenizer != nullptr && tokenizer->has_text(); }
};

// --- requests to structs; `path` is what the field's name is appended to, "" or "turn." ---

// Token ids of a prompt; absent gives none. at_start: the model's beginning-of-sequence token goes
// before text. FailedPrecondition for text without a tokenizer.
absl::StatusOr<std::vector<int32_t>> PromptTokens(const v1::Prompt& prompt, const std::string& path,
                                                  bool at_start, const RequestLimits& limits);
absl::Status CheckNotEmpty(const std::vector<int32_t>& tokens, const std::string& path);

absl::Status SetSampling(const v1::SamplingParams& from, const std::string& path,
                         const RequestLimits& limits, GenerateRequest& to);
absl::Status SetStop(const v1::StopConditions& from, const std::string& path,
                     const RequestLimits& limits, GenerateRequest& to);
absl::Status SetOutput(const v1::OutputOptions& from, const std::string& path,
                       const RequestLimits& limits, GenerateRequest& to);
absl::StatusOr<int32_t> ToSlotCap(uint32_t value, const std::string& path,
                                  const RequestLimits& limits);
absl::StatusOr<absl::Duration> ToTtl(const google::protobuf::Duration& ttl,
                                     const std::string& path);
absl::StatusOr<ScoreRequest> ToScoreRequest(const v1::ScoreRequest& from,
                                            const RequestLimits& limits);
// Detokenize's ids.
absl::StatusOr<std::vector<int32_t>> ToTokenIds(
    const google::protobuf::RepeatedField<uint32_t>& ids, const std::string& path,
    int64_t vocab_size);

// --- structs to answers ---
void Fill(const Started& from, v1::Started& to);
void Fill(const TokenChunk& from, v1::TokenChunk& to);
void Fill(const Finished& from, v1::Finished& to);
void Fill(const SessionInfo& from, v1::Session& to);
v1::ScoreResponse ToScoreResponse(const std::vector<int32_t>& tokens, const ScoreResult& result);

}  // namespace ovq
