// What is known of the calls of a run once they have ended.
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

// One message with tokens.
struct Arrival {
  Clock::time_point at;
  uint32_t tokens = 0;
};

// The server's own figures, from the message that ends an answer.
struct ServerUsage {
  int64_t prompt_tokens = 0;
  int64_t generated_tokens = 0;
  int64_t state_bytes = 0;
  int64_t position = 0;
  double queue_s = 0, prefill_s = 0, decode_s = 0;
};

// A Generate call as the connection saw it.
struct Outcome {
  absl::Status status;
  Clock::time_point sent;   // the call was started
  Clock::time_point ended;  // its status came
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
  int64_t input_tokens = 0;  // asked for; what was prefilled is in the usage
  // Latencies count from here: when the schedule wanted the request sent (open loop), or when it
  // was (closed loop).
  Clock::time_point start;
  double send_delay_s = 0;  // from when it was due to when this client acted on it
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
  std::vector<Record> records = {};    // in the order of their ends
  int64_t unsent = 0;                  // were due before the end of the run, yet never sent
  int64_t abandoned = 0;               // later turns of conversations that failed
  int64_t outlasted = 0;               // calls of sessions that began again when a server was back
  std::vector<double> create_ms = {};  // of every CreateSession that succeeded
  ErrorCount delete_errors = {};       // of DeleteSession
  bool interrupted = false;
};

}  // namespace ovq::load
