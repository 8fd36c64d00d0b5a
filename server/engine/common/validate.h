// Validation of callers' requests against limits.h and the server's own limits, before they are
// queued. Pure functions; every error message names the field by its path in the API.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/session_image.h"

namespace ovq::engine {

// Everything except checks that depend on the session.
absl::Status ValidateGenerate(const EngineConfig& config, const GenerateRequest& request);
absl::Status ValidateScore(const EngineConfig& config, const ScoreRequest& request);
absl::Status CheckTtl(const EngineConfig& config, const std::optional<absl::Duration>& ttl,
                      const std::string& prefix);
absl::Status ValidateFork(const EngineConfig& config, const ForkOptions& fork);
absl::Status ValidateSession(const EngineConfig& config, const SessionOptions& session);
// OutOfRange if full-attention layers have no room for `position` tokens.
absl::Status CheckPosition(const model::StateLayout& layout, int64_t position);

// --- single fields; `path` names the field, `prefix` is prepended to its name ("", "turn.") ---
// Checks that the model variant exists and that its layers accept the slot cap, if there is one.
absl::Status CheckVariant(const EngineConfig& config, const std::string& variant,
                          std::optional<int32_t> slot_cap, const std::string& prefix);
absl::Status CheckTokenIds(std::span<const int32_t> ids, int64_t vocab_size,
                           const std::string& path);
// Checks the length alone, before the tokens are copied.
absl::Status CheckPromptLength(const EngineConfig& config, int64_t n_tokens,
                               const std::string& prefix);
// Checks the size of a text before it is tokenized.
absl::Status CheckTextBytes(const EngineConfig& config, size_t bytes, const std::string& path);
// Checks the sizes of a generation's lists.
struct ListSizes {
  int64_t stop_strings = 0, stop_token_ids = 0, logit_bias = 0;
};
absl::Status CheckListSizes(const ListSizes& sizes, const std::string& prefix);
absl::Status CheckToolsBytes(int64_t bytes, const std::string& path);  // of a conversation
absl::Status CheckMessageCount(int64_t n_messages, const std::string& path);
// Sizes of a conversation's texts of JSON.
struct ConversationBytes {
  int64_t tools = 0, args = 0;
};
// Checks the messages of a conversation, of which the session already holds the first `known`, and
// the size of its other texts. CheckMessageCount has passed.
absl::Status CheckConversation(std::span<const jinja::ChatMessage> messages, int64_t known,
                               const ConversationBytes& bytes, const std::string& path);
absl::Status CheckSessionId(const std::string& id, const std::string& prefix);
// Checks the base of a delta: length and digest of an earlier export.
absl::Status CheckSessionBase(uint64_t length, size_t digest_bytes, const std::string& path);
absl::Status CheckPageSize(int32_t page_size);  // 0 is kDefaultPageSize
absl::Status CheckInfoPositions(std::span<const uint64_t> positions);
// These two return the error. part: "tokenizer", "chat template"; FailedPrecondition.
absl::Status EmptyPrompt(const std::string& prefix);
absl::Status ModelLacks(const std::string& path, const char* part);

// --- session files, before and after their bytes arrive ---
// Checks that a server with this model and layout can hold a session as the head declares it:
// FailedPrecondition for another model or layout, or a slot cap or position beyond its limits;
// DataLoss for a state size or a token that no session of this model has. Checks the tokens that
// have arrived: none for a head alone.
absl::Status CheckSessionFits(const SessionImage& image, std::string_view model_fingerprint,
                              const model::StateLayout& layout, int64_t vocab_size);

// DataLoss if no session of this layout can have the state of an image that CheckSessionFits
// accepted (CheckState). Checksums only prove that a file is as it was written, not who wrote it.
// base: the address range in host memory into which the state was read, in place of the image.
absl::Status CheckSessionState(const SessionImage& image, const model::StateLayout& layout,
                               const std::byte* base = nullptr);

}  // namespace ovq::engine
