// Payloads of an absl::Status: facts for programs, and a text for the log. The message itself is
// for the caller; no code parses it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace ovq::engine {

// The reason why a valid request was refused.
enum class RejectReason : uint8_t {
  kQueueFull,
  kStateMemory,
  kSessionLimit,
  kDraining,
  kTenantSessions,
  kTenantBytes,
  kTenantRequests,
  kTenantTokens,
  kGaveWay,
  kRequestMemory,
};
inline constexpr std::array<const char*, 10> kRejectReasons = {
    "queue_full",   "state_memory",    "session_limit", "draining", "tenant_sessions",
    "tenant_bytes", "tenant_requests", "tenant_tokens", "gave_way", "request_memory"};
inline const char* RejectReasonName(RejectReason reason) {
  return kRejectReasons[static_cast<size_t>(reason)];
}

struct ErrorFacts {
  std::string field = {};  // path of the bad field in the request: "sampling.top_p"
  std::optional<RejectReason> reason = {};
  std::optional<size_t> bytes_needed = {}, bytes_free = {};
  std::optional<absl::Duration> retry_after = {};  // until this limit no longer refuses
  std::optional<uint64_t> position = {};           // a session's, if the caller expected another

  bool operator==(const ErrorFacts&) const = default;
  bool empty() const { return *this == ErrorFacts{}; }
};

// Sets those facts of the status that `facts` has. An OK status is returned unchanged.
absl::Status WithFacts(absl::Status status, const ErrorFacts& facts);
ErrorFacts GetErrorFacts(const absl::Status& status);

// Sets the text to log in place of a message that quotes the caller's input.
absl::Status WithLogText(absl::Status status, absl::string_view text);
std::string LogText(const absl::Status& status);

// Returns InvalidArgument "field: expected X, got Y". The log text omits ", got Y" and `key`, a
// part of the field's name that the caller chose ("[7]").
absl::Status BadField(absl::string_view field, absl::string_view expected,
                      const absl::AlphaNum& got, absl::string_view key = "");

}  // namespace ovq::engine
