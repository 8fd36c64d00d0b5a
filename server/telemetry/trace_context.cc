#include "server/telemetry/trace_context.h"

#include <sys/random.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ovq {
namespace {

constexpr size_t kVersion00Size = 55;  // "00-" 32 digits "-" 16 digits "-" 2 digits
constexpr size_t kMaxStateSize = 512;  // a smaller one must be passed on, this one may be dropped

std::string RandomHex(size_t n_bytes) {
  std::string bytes(n_bytes, '\0');
  Check(getrandom(bytes.data(), n_bytes, 0) == static_cast<ssize_t>(n_bytes),
        "the system gives random bits");
  return absl::BytesToHexString(bytes);
}

bool IsHex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

int HexDigit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

// False: the header has to be taken for absent.
bool Parse(std::string_view text, Span& span) {
  if (text.size() < kVersion00Size) return false;
  const std::string_view version = text.substr(0, 2), trace_id = text.substr(3, 32);
  const std::string_view parent_id = text.substr(36, 16), flags = text.substr(53, 2);
  for (std::string_view part : {version, trace_id, parent_id, flags}) {
    if (!IsHex(part)) return false;
  }
  for (size_t dash : {2, 35, 52}) {
    if (text[dash] != '-') return false;
  }
  if (version == "ff" || IsZero(trace_id) || IsZero(parent_id)) return false;
  if (text.size() > kVersion00Size) {
    // A later version may say more, after a dash; what it says here means what it means today.
    if (version == "00" || text[kVersion00Size] != '-') return false;
  }
  span.trace_id = std::string(trace_id);
  span.parent_id = std::string(parent_id);
  span.sampled = (HexDigit(flags[1]) & 1) != 0;
  return true;
}

}  // namespace

std::string NewRequestId() { return RandomHex(16); }

std::string Span::traceparent() const {
  return absl::StrCat("00-", trace_id, "-", span_id, sampled ? "-01" : "-00");
}

Span StartSpan(const std::optional<std::string>& traceparent,
               const std::optional<std::string>& tracestate) {
  Span span;
  span.span_id = RandomHex(8);
  if (!traceparent || !Parse(*traceparent, span)) {
    span.trace_id = RandomHex(16);
    return span;
  }
  const bool printable =
      tracestate && std::ranges::all_of(*tracestate, [](char c) { return c >= ' ' && c <= '~'; });
  if (printable && tracestate->size() <= kMaxStateSize) span.state = *tracestate;
  return span;
}

}  // namespace ovq
