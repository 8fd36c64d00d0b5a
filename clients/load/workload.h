// What is sent: conversations of one or more turns, and the tokens of their prompts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clients/load/distributions.h"
#include "clients/load/trace.h"

namespace ovq::load {

struct Turn {
  int64_t input_tokens = 1;
  int64_t output_tokens = 1;
  std::optional<double> due_s = {};  // of a trace; else it follows the turn before
};

struct Conversation {
  int64_t index = 0;
  bool session = false;          // its turns share a session on the server
  std::vector<Turn> turns = {};  // not empty
};

struct WorkloadOptions {
  LengthDistribution input = LengthDistribution::Fixed(128);
  LengthDistribution output = LengthDistribution::Fixed(64);
  int64_t turns = 1;  // more than one: sessions
  uint64_t seed = 1;
  std::optional<int64_t> max_requests = {};  // over all conversations; default 1000 or the trace
  int64_t first_index = 0;             // of the conversations; prompts of different indices differ
  std::vector<TraceEntry> trace = {};  // if not empty: lengths, times and sessions are these
  double trace_speed = 1;              // its times are divided by this
};

// Gives one conversation after another. The n-th does not depend on when it is asked for.
class Workload {
 public:
  explicit Workload(WorkloadOptions options);
  std::optional<Conversation> Next();  // nullopt after max_requests turns

 private:
  const WorkloadOptions options_;
  std::vector<Conversation> traced_;  // in the order of their first turns
  int64_t next_ = 0;
  int64_t requests_ = 0;
};

// What a request holds beside its lengths: a prompt of token ids, drawn at random or a slice of a
// text, and the seed of the server's sampler. Both depend on nothing but the request's place.
class PromptMaker {
 public:
  // Ids are drawn from [0, vocab_size).
  PromptMaker(uint64_t seed, uint32_t vocab_size) : seed_(seed), vocab_size_(vocab_size) {}
  // Slices of text (not empty) from a random place on, going round at its end.
  PromptMaker(uint64_t seed, std::vector<uint32_t> text) : seed_(seed), text_(std::move(text)) {}

  std::vector<uint32_t> Make(int64_t conversation, int64_t turn, int64_t tokens) const;
  uint64_t SamplingSeed(int64_t conversation, int64_t turn) const;

 private:
  const uint64_t seed_;
  const uint32_t vocab_size_ = 0;
  const std::vector<uint32_t> text_;
};

}  // namespace ovq::load
