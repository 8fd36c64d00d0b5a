#include "server/engine/common/error_facts.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"

namespace ovq::engine {
namespace {

// Each fact is a payload, as text.
constexpr char kField[] = "ovq.field";
constexpr char kReason[] = "ovq.reason";
constexpr char kBytesNeeded[] = "ovq.bytes_needed";
constexpr char kBytesFree[] = "ovq.bytes_free";
constexpr char kRetryAfterMs[] = "ovq.retry_after_ms";
constexpr char kPosition[] = "ovq.position";
constexpr char kLogText[] = "ovq.log_text";

void PutFact(absl::Status& status, const char* key, const absl::AlphaNum& value) {
  status.SetPayload(key, absl::Cord(value.Piece()));
}

std::optional<std::string> Text(const absl::Status& status, const char* key) {
  const absl::optional<absl::Cord> payload = status.GetPayload(key);
  if (!payload) return std::nullopt;
  return std::string(*payload);
}

std::optional<size_t> Number(const absl::Status& status, const char* key) {
  size_t number = 0;
  if (!absl::SimpleAtoi(Text(status, key).value_or(""), &number)) return std::nullopt;
  return number;
}

}  // namespace

absl::Status WithFacts(absl::Status status, const ErrorFacts& facts) {
  if (!facts.field.empty()) PutFact(status, kField, facts.field);
  if (facts.reason) PutFact(status, kReason, static_cast<int>(*facts.reason));
  if (facts.bytes_needed) PutFact(status, kBytesNeeded, *facts.bytes_needed);
  if (facts.bytes_free) PutFact(status, kBytesFree, *facts.bytes_free);
  if (facts.retry_after)
    PutFact(status, kRetryAfterMs, absl::ToInt64Milliseconds(*facts.retry_after));
  if (facts.position) PutFact(status, kPosition, *facts.position);
  return status;
}

ErrorFacts GetErrorFacts(const absl::Status& status) {
  ErrorFacts facts;
  facts.field = Text(status, kField).value_or("");
  if (const auto reason = Number(status, kReason))
    facts.reason = static_cast<RejectReason>(*reason);
  facts.bytes_needed = Number(status, kBytesNeeded);
  facts.bytes_free = Number(status, kBytesFree);
  if (const auto ms = Number(status, kRetryAfterMs)) {
    facts.retry_after = absl::Milliseconds(static_cast<int64_t>(*ms));
  }
  facts.position = Number(status, kPosition);
  return facts;
}

absl::Status WithLogText(absl::Status status, absl::string_view text) {
  PutFact(status, kLogText, text);
  return status;
}

std::string LogText(const absl::Status& status) {
  return Text(status, kLogText).value_or(std::string(status.message()));
}

absl::Status BadField(absl::string_view field, absl::string_view expected,
                      const absl::AlphaNum& got, absl::string_view key) {
  const std::string name = absl::StrCat(field, key);
  absl::Status status =
      absl::InvalidArgumentError(absl::StrCat(name, ": expected ", expected, ", got ", got));
  status = WithLogText(std::move(status), absl::StrCat(field, ": expected ", expected));
  return WithFacts(std::move(status), {.field = name});
}

}  // namespace ovq::engine
