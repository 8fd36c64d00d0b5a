// Generates what a load test sends: conversations of one or more turns, drawn at random or read
// from a trace (one JSON object a line), and the tokens of their prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/load/distributions.h"

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

struct Turn {
  int64_t input_tokens = 1;
  int64_t output_tokens = 1;
  std::optional<double> due_s = {};  // from a trace; otherwise the turn follows the previous one
};

struct Conversation {
  int64_t index = 0;
  bool session = false;          // the turns share a session on the server
  std::vector<Turn> turns = {};  // not empty
};

struct WorkloadOptions {
  LengthDistribution input = LengthDistribution::Fixed(128);
  LengthDistribution output = LengthDistribution::Fixed(64);
  int64_t turns = 1;  // more than one: the turns share a session
  uint64_t seed = 1;
  std::optional<int64_t> max_requests = {};  // over all conversations; default: 1000, or the
                                             // trace's length
  int64_t first_index = 0;             // index of the first conversation; prompts of different
                                       // indices differ
  std::vector<TraceEntry> trace = {};  // if not empty, gives the lengths, times and sessions
  double trace_speed = 1;              // divides the trace's times
};

// Generates one conversation after another. The n-th does not depend on when it is generated.
class Workload {
 public:
  explicit Workload(WorkloadOptions options);
  std::optional<Conversation> Next();  // nullopt after max_requests turns

 private:
  const WorkloadOptions options_;
  std::vector<Conversation> traced_;  // ordered by their first turns
  int64_t next_ = 0;
  int64_t requests_ = 0;
};

// Makes the content of requests: a prompt of token ids, random or a slice of a text, and the seed
// of the server's sampler. Both depend only on the request's indices.
class PromptMaker {
 public:
  // Draws ids from [0, vocab_size).
  PromptMaker(uint64_t seed, uint32_t vocab_size) : seed_(seed), vocab_size_(vocab_size) {}
  // Takes slices of `text` (not empty) from a random offset, wrapping around at its end.
  PromptMaker(uint64_t seed, std::vector<uint32_t> text) : seed_(seed), text_(std::move(text)) {}

  std::vector<uint32_t> Make(int64_t conversation, int64_t turn, int64_t tokens) const;
  uint64_t SamplingSeed(int64_t conversation, int64_t turn) const;

 private:
  const uint64_t seed_;
  const uint32_t vocab_size_ = 0;
  const std::vector<uint32_t> text_;
};

}  // namespace ovq::load
