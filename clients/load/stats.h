// Computes the figures of a run from its records, from all samples, without buckets.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/load/record.h"

namespace ovq::load {

// Interpolates linearly between the two nearest ranks, like numpy.percentile. `sorted` is ascending
// and not empty.
double Percentile(std::span<const double> sorted, double percent);

struct Summary {
  std::vector<double> samples;        // ascending
  double mean = 0, std = 0, max = 0;  // std is the population standard deviation
  double p50 = 0, p90 = 0, p95 = 0, p99 = 0;
};
Summary Summarize(std::vector<double> samples);  // all zero without samples

// The latencies of one completed request, in milliseconds.
struct Latencies {
  double ttft = 0;                  // start to first token
  double e2e = 0;                   // start to end
  std::optional<double> tpot;       // (e2e - ttft) / (tokens - 1); none for a single token
  std::vector<double> inter_token;  // one for each token after the first
};
Latencies ComputeLatencies(const Record& record);

// Latency bounds, in milliseconds, of a good request; absent bounds always hold.
struct Goodput {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;
  // Parses "ttft:200,tpot:50,e2e:5000" in milliseconds; every part is optional.
  static absl::StatusOr<Goodput> Parse(absl::string_view text);
  bool Good(const Latencies& latencies) const;
};

struct Report {
  double duration_s = 0;  // from the first start to the last end
  int64_t completed = 0, failed = 0, cut_off = 0;
  int64_t input_tokens = 0, output_tokens = 0;  // tokens of completed requests, as the server
                                                // counts them
  double request_throughput = 0, output_throughput = 0, total_throughput = 0;  // per second
  std::optional<int64_t> good;  // completed requests within --goodput
  Summary ttft_ms, inter_token_ms, tpot_ms, e2e_ms;
  Summary create_ms;                        // time to create a session
  Summary send_delay_ms;                    // from due to sent: this client's own lateness
  Summary queue_ms, prefill_ms, decode_ms;  // measured by the server
  Summary state_bytes;                      // the largest state of each session
  Summary tokens_per_chunk;
  int64_t max_in_flight = 0;
  std::map<std::string, ErrorCount> errors;  // keyed by status code

  double goodput() const;        // good requests per second
  double good_fraction() const;  // share of the requests that completed or failed; 1 without
                                 // --goodput
};

Report MakeReport(const RunResult& run, const std::optional<Goodput>& goodput);
// Returns when the first request started; `records` is not empty.
Clock::time_point FirstStart(std::span<const Record> records);

// Figures of one time slice of a run.
struct TimelineBin {
  double begin_s = 0, width_s = 0;
  int64_t tokens = 0;     // tokens received
  int64_t completed = 0;  // requests that ended
  double in_flight = 0;   // mean number of requests sent and not ended
};
std::vector<TimelineBin> MakeTimeline(std::span<const Record> records, int bins);

}  // namespace ovq::load
