// What the log says of a call that ended, and of a turn of one. No gRPC here.
//
// Never a prompt, an answer, a token of either, or a secret.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/engine/engine_api.h"
#include "server/telemetry/log.h"

namespace ovq {

// Which calls have a line.
enum class LogRequests : uint8_t { kNone, kErrors, kAll };
inline constexpr std::array<const char*, 3> kLogRequests = {"none", "errors", "all"};

// What the engine did for a call or a turn, as far as it is known.
struct WorkSummary {
  std::optional<int64_t> prompt_tokens, generated_tokens;
  std::optional<absl::Duration> queue_time;                 // of the last request to the engine
  std::optional<absl::Duration> first_token;                // from that request
  std::optional<absl::Duration> prefill_time, decode_time;  // likewise of the last one
  std::optional<FinishReason> finish;                       // of the last completion

  void Add(const StreamEvent& event);
  void AppendTo(LogFields& fields) const;
};

struct CallSummary {
  std::string tenant;
  std::string session_id;
  std::optional<int64_t> turns;  // of a Chat
  WorkSummary work;

  // Text of a caller that is no session's id could be anything, and is left out.
  void SetSession(std::string_view id);
  void AppendTo(LogFields& fields) const;
};

// A fault of the server is a warning; all else, a caller's mistake included, is information.
LogLevel CallLogLevel(absl::StatusCode code, bool draining);

double Milliseconds(absl::Duration time);  // to the microsecond

}  // namespace ovq
