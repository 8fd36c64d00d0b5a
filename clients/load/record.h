// Records of the calls of a run, made when they end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ovq::load {

using Clock = std::chrono::steady_clock;

inline double SecondsBetween(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Arrival of one message with tokens.
struct Arrival {
  Clock::time_point at;
  uint32_t tokens = 0;
};

// Usage figures that the server reports in an answer's last message.
struct ServerUsage {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t state_bytes = 0;
  int64_t position = 0;
  double queue_s = 0, prefill_s = 0, decode_s = 0;
};

// Outcome of a Generate call as the connection saw it.
struct Outcome {
  absl::Status status;
  Clock::time_point sent;   // when the call was started
  Clock::time_point ended;  // when its status arrived
  std::vector<Arrival> arrivals = {};
  ServerUsage usage = {};  // zeros if the call failed

  int64_t tokens() const {
    int64_t sum = 0;
    for (const Arrival& arrival : arrivals) sum += arrival.tokens;
    return sum;
  }
};

struct Record {
  int64_t conversation = 0;
  int64_t turn = 0;
  int64_t input_tokens = 0;  // tokens requested; `usage` has those prefilled
  // Latencies count from here: open loop, when the request was due; closed loop, when it was sent.
  Clock::time_point start;
  double send_delay_s = 0;  // from when it was due to when this client sent it
  Outcome outcome;
  bool cut_off = false;  // cancelled because the run was over: neither completed nor failed

  bool completed() const { return outcome.status.ok(); }
  bool failed() const { return !outcome.status.ok() && !cut_off; }
};

struct ErrorCount {
  int64_t count = 0;
  std::string first_message = {};

  void Add(const std::string& message) {
    if (count++ == 0) first_message = message;
  }
};

struct RunResult {
  std::vector<Record> records = {};    // ordered by their ends
  int64_t unsent = 0;                  // due before the end of the run but never sent
  int64_t abandoned = 0;               // later turns of conversations that failed
  int64_t outlasted = 0;               // session calls that were repeated once the server was
                                       // reachable again
  std::vector<double> create_ms = {};  // of every successful CreateSession
  ErrorCount delete_errors = {};       // failed DeleteSession calls
  bool interrupted = false;
};

}  // namespace ovq::load
