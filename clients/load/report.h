// All that is known of a load test, and its reports as text, JSON, CSV and HTML.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "clients/load/options.h"
#include "clients/load/record.h"
#include "clients/load/stats.h"

namespace ovq::load {

struct ModelFacts {
  std::string name, fingerprint, device, server_version;
  uint64_t vocab_size = 0;
  uint64_t max_prompt_tokens = 0;
};

// One run; of a sweep, one of several.
struct Level {
  double load = 0;  // users (closed loop), or requests a second; of a trace 0
  Report report;
  RunResult run;
  double client_cpu = 0;  // mean number of cores that this client used
  std::string verdict;    // why a sweep ended here

  // Requests that failed and sessions that could not be deleted.
  int64_t errors() const { return report.failed + run.delete_errors.count; }
};

struct Result {
  Options options = {};
  ModelFacts model = {};
  std::string command_line = {};    // that asked for it, as a shell would read it
  std::string host = {};            // where the client ran: its name and processors
  std::string started = {};         // RFC 3339
  std::vector<Level> levels = {};   // one at least
  std::optional<size_t> best = {};  // of a sweep: Sweep::best

  // The one whose figures stand for the whole: the best of a sweep, else the last.
  const Level& main_level() const { return levels[best.value_or(levels.size() - 1)]; }
};

std::string TextReport(const Result& result);
// Keys of `vllm bench serve`, and everything else under "ovq".
std::string JsonReport(const Result& result);
std::string CsvReport(const Result& result);   // a row for every request
std::string HtmlReport(const Result& result);  // needs no other file

// The files that the options ask for.
absl::Status WriteReports(const Result& result);

// One line of a sweep's table, and the line above them all; both end with a newline.
std::string SweepHeader(const Options& options);
std::string SweepLine(const Level& level);

// --- what several of them tell ---
// "closed loop, 16 users", "poisson arrivals, 5 requests/s", "trace FILE".
std::string DescribeLoad(const Options& options, double load);

using Cells = std::vector<std::string>;
// Load, requests completed and failed, requests and tokens a second, TTFT p50 and p99, ITL p50, E2E
// p99, % good, verdict.
Cells SweepCells(const Level& level);
// The names of the columns, then a row for every latency with samples, in milliseconds.
// The command line, the host, and each option that was given with its value.
std::vector<Cells> SetupRows(const Result& result);
std::vector<Cells> LatencyTable(const Level& level);
// Names and values of everything else: counts, throughputs, what went wrong.
std::vector<Cells> FactRows(const Level& level);

}  // namespace ovq::load
