// Defines the result of a load test, and its reports as text, JSON, CSV and HTML.
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

// One run: a level of a sweep, or the only one.
struct Level {
  double load = 0;  // users (closed loop) or requests per second; 0 for a trace
  Report report;
  RunResult run;
  double client_cpu = 0;  // mean number of CPU cores that this client used
  std::string verdict;    // why the sweep ended at this level

  // Returns the number of requests that failed and of sessions that could not be deleted.
  int64_t errors() const { return report.failed + run.delete_errors.count; }
};

struct Result {
  Options options = {};
  ModelFacts model = {};
  std::string command_line = {};    // the command that was run, in shell syntax
  std::string host = {};            // the client's host name and processors
  std::string started = {};         // RFC 3339
  std::vector<Level> levels = {};   // not empty
  std::optional<size_t> best = {};  // for a sweep: Sweep::best

  // The level that stands for the whole result: the best of a sweep, else the last.
  const Level& main_level() const { return levels[best.value_or(levels.size() - 1)]; }
};

std::string TextReport(const Result& result);
// Uses the keys of `vllm bench serve`; everything else is under "ovq".
std::string JsonReport(const Result& result);
std::string CsvReport(const Result& result);   // one row for each request
std::string HtmlReport(const Result& result);  // self-contained

// An error that names the first flag whose report could not be written.
absl::Status CheckReportFiles(const OutputOptions& output);
// Writes the report files that the options name.
absl::Status WriteReports(const Result& result);

// Return the head and one line of a sweep's table; both end with a newline.
std::string SweepHeader(const Options& options);
std::string SweepLine(const Level& level);

// The functions below make parts of several reports.

// Returns "closed loop, 16 users", "poisson arrivals, 5 requests/s" or "trace FILE".
std::string DescribeLoad(const Options& options, double load);

using Cells = std::vector<std::string>;
// Cells: load, requests completed and failed, requests and tokens per second, TTFT p50 and p99, ITL
// p50, E2E p99, % good, verdict.
Cells SweepCells(const Level& level);
// SetupRows returns the command line, the host, and each option that was given with its value.
// LatencyTable returns the column names, then one row for each latency that has samples, in
// milliseconds.
std::vector<Cells> SetupRows(const Result& result);
std::vector<Cells> LatencyTable(const Level& level);
// Returns names and values of the other figures: counts, throughputs, errors.
std::vector<Cells> FactRows(const Level& level);

}  // namespace ovq::load
