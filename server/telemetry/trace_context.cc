#include "server/telemetry/trace_context.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "base/text.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxStateSize =
    512;  // states up to this size must be passed on, longer ones may be dropped

bool IsHex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}
bool IsZero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

// Parses "VERSION-TRACE-PARENT-FLAGS". False: the header counts as absent.
bool Parse(std::string_view text, Span& span) {
  constexpr size_t kSizes[] = {2, 32, 16, 2};
  const std::vector<std::string> parts = absl::StrSplit(AbslView(text), absl::MaxSplits('-', 4));
  if (parts.size() < std::size(kSizes)) return false;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    if (parts[i].size() != kSizes[i] || !IsHex(parts[i])) return false;
  }
  if (parts[0] == "ff" || IsZero(parts[1]) || IsZero(parts[2])) return false;
  // A later version may append more after a dash; these four parts keep their meaning.
  if (parts[0] == "00" && parts.size() > std::size(kSizes)) return false;
  span.trace_id = parts[1];
  span.parent_id = parts[2];
  span.sampled = std::string_view("13579bdf").find(parts[3][1]) != std::string_view::npos;
  return true;
}

}  // namespace

std::string NewRequestId() { return UnguessableHex(); }

std::string Span::traceparent() const {
  return absl::StrCat("00-", trace_id, "-", span_id, sampled ? "-01" : "-00");
}

Span StartSpan(const std::optional<std::string>& traceparent,
               const std::optional<std::string>& tracestate) {
  Span span;
  span.span_id = NewRequestId().substr(16);
  if (!traceparent || !Parse(*traceparent, span)) {
    span.trace_id = NewRequestId();
    return span;
  }
  const bool printable =
      tracestate && std::ranges::all_of(*tracestate, [](char c) { return c >= ' ' && c <= '~'; });
  if (printable && tracestate->size() <= kMaxStateSize) span.state = *tracestate;
  return span;
}

}  // namespace ovq::server
