// Reads traces, which give arrival times and lengths of requests as one JSON object a line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ovq::load {

struct TraceEntry {
  double at_s = 0;  // since the trace's first entry
  int64_t input_tokens = 1;
  int64_t output_tokens = 1;
  std::string session = {};  // empty: a request without a session
};

// Returns the entries ordered by time. A line holds "timestamp_s" (seconds) or "timestamp"
// (milliseconds, as in the Mooncake traces), "input_length", "output_length" and optionally
// "session" (text). Other fields and empty lines are ignored. InvalidArgument names file:line.
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text, const std::string& file);

// Applies ParseTrace to a file of at most 1 GiB.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& file);

}  // namespace ovq::load
