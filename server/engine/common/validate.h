// The one check of what callers ask, against limits.h and the server's own limits, before anything
// is queued or computed. Pure functions; every message names the field by its path in the API.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "server/engine/common/engine_api.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/session_image.h"

namespace ovq {

// All but what depends on the session.
absl::Status ValidateGenerate(const EngineConfig& config, const GenerateRequest& request);
absl::Status ValidateScore(const EngineConfig& config, const ScoreRequest& request);
absl::Status CheckTtl(const EngineConfig& config, const std::optional<absl::Duration>& ttl,
                      const std::string& prefix);
absl::Status ValidateFork(const EngineConfig& config, const ForkOptions& fork);
absl::Status ValidateSession(const EngineConfig& config, const SessionOptions& session);
// OutOfRange if full-attention layers have no room for `position` tokens.
absl::Status CheckPosition(const StateLayout& layout, int64_t position);

// --- single fields; `path` is the field's, `prefix` what its name is appended to ("", "turn.") ---
// That there is such a memory, and that its layers take the cap, if there is one.
absl::Status CheckVariant(const EngineConfig& config, const std::string& memory,
                          std::optional<int32_t> slot_cap, const std::string& prefix);
absl::Status CheckTokenIds(std::span<const int32_t> ids, int64_t vocab_size,
                           const std::string& path);
// The length alone, for before the tokens are copied.
absl::Status CheckPromptLength(const EngineConfig& config, int64_t n_tokens,
                               const std::string& prefix);
// The bytes of a text, for before it is tokenized; `path` is its field's name.
absl::Status CheckTextBytes(const EngineConfig& config, size_t bytes, const std::string& path);
// Lists of a generation, likewise; `prefix` begins the names of their fields.
struct ListSizes {
  int64_t stop_strings = 0, stop_token_ids = 0, logit_bias = 0;
};
absl::Status CheckListSizes(const ListSizes& sizes, const std::string& prefix);
absl::Status CheckMessageCount(int64_t n_messages, const std::string& path);
// Messages of a conversation, of a number that was checked, `known` of which its session holds, and
// the text of its tools.
absl::Status CheckConversation(std::span<const ChatMessage> messages, int64_t known,
                               int64_t tools_bytes, const std::string& path);
absl::Status CheckSessionId(const std::string& id, const std::string& prefix);
// Of an earlier export, that a delta is asked for since.
absl::Status CheckSessionBase(uint64_t length, size_t digest_bytes, const std::string& path);
absl::Status CheckPageSize(int32_t page_size);  // 0 is kDefaultPageSize
absl::Status CheckInfoPositions(std::span<const uint64_t> positions);
absl::Status EmptyPrompt(const std::string& prefix);  // the error
absl::Status NoTokenizer(const std::string& path);    // likewise, FailedPrecondition
absl::Status NoChatTemplate(const std::string& path);

// --- session files, before and after their bytes are there ---
// Whether a server with this model and layout can take what the head declares: FailedPrecondition
// for another model or layout, a slot cap or a position beyond its limits; DataLoss for a state of
// another size or a token beyond the vocabulary, which no session of this model has. The tokens are
// looked at as far as they are there: none of a head alone.
absl::Status CheckSessionFits(const SessionImage& image, std::string_view model_fingerprint,
                              const StateLayout& layout, int64_t vocab_size);

// DataLoss for a whole image that fits, but whose state no session of this layout has (CheckState):
// its checksums say that it is as it was written, not by whom.
absl::Status CheckSessionState(const SessionImage& image, const StateLayout& layout);
// The same for one whose state lies in a session's range, in the host's memory.
absl::Status CheckSessionState(const SessionImage& image, const StateLayout& layout,
                               const std::byte* base);

}  // namespace ovq
