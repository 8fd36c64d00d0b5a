// Limits of requests, used by validate.h, error messages, GetModelInfo and --help.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/mixers/state.h"

namespace ovq::engine {

// The range from low to high, including high. It never contains NaN.
struct FloatRange {
  float low, high;
  bool low_included = true;

  bool Has(float value) const {
    return (low_included ? value >= low : value > low) && value <= high;
  }
  std::string Text() const {  // "[0, 100]", "(0, 1]"
    return absl::StrCat(low_included ? "[" : "(", low, ", ", high, "]");
  }
};

// Sampling.
inline constexpr FloatRange kTemperatureRange = {0, 100};  // 0: greedy
inline constexpr FloatRange kTopPRange = {0, 1, false};
inline constexpr FloatRange kMinPRange = {0, 1};
inline constexpr FloatRange kTypicalPRange = {0, 1, false};
inline constexpr FloatRange kRepetitionPenaltyRange = {0, 100, false};
inline constexpr FloatRange kPresencePenaltyRange = {-2, 2};
inline constexpr FloatRange kFrequencyPenaltyRange = {-2, 2};
inline constexpr FloatRange kLogitBiasRange = {-100, 100};
inline constexpr int32_t kMaxTopK = std::numeric_limits<int32_t>::max();
inline constexpr int64_t kMaxLogitBias = 4096;  // entries
// Texts of more than this times --max-prompt-tokens bytes are refused before they are tokenized.
inline constexpr int64_t kMaxBytesPerToken = 64;
inline constexpr int32_t kMaxCompletions = 64;                      // n
inline constexpr int64_t kMaxConstraintBytes = int64_t{256} << 10;  // of the texts of one
inline constexpr int64_t kMaxChoices = 4096;                        // of a constraint

// Conversations.
inline constexpr int64_t kMaxMessages = 4096;
inline constexpr int64_t kMaxRoleBytes = 64;
inline constexpr int64_t kMaxToolsBytes = int64_t{1} << 20;
inline constexpr int64_t kMaxTemplateArgsBytes = int64_t{64} << 10;
inline constexpr int64_t kMaxToolCalls = 128;      // of one message
inline constexpr int64_t kMaxToolNameBytes = 256;  // of a tool, an author or a call's id

// Stop conditions and output.
inline constexpr int64_t kMaxStopStrings = 16;
inline constexpr int64_t kMaxStopStringBytes = 1024;  // each
inline constexpr int64_t kMaxStopTokenIds = 1024;
inline constexpr int64_t kMaxTopLogprobs = 1024;  // in an answer; scores allow the whole vocabulary
inline constexpr size_t kMaxAnswerBytes = size_t{64} << 20;  // per message to a client

// Sessions. Slot caps are at least kMinSlotCap and at most EngineOptions::max_slot_cap, which the
// server's option keeps within kMaxSlotCap (kernels/mixers/state.h).
inline constexpr absl::Duration kMaxSessionTtl = absl::Hours(24 * 366);  // --max-session-ttl
inline constexpr int32_t kMaxForks = 64;                                 // per call
inline constexpr int32_t kDefaultPageSize = 100;
inline constexpr int32_t kMaxPageSize = 1000;

// GetModelInfo.
inline constexpr int64_t kMaxInfoPositions = 1000;
// Far beyond any conversation, and small enough that arithmetic on it does not overflow.
inline constexpr uint64_t kMaxInfoPosition = uint64_t{1} << 48;

}  // namespace ovq::engine
