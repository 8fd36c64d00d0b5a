// Defines the command line of ovq-load.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "clients/common/program.h"
#include "clients/load/runner.h"
#include "clients/load/stats.h"
#include "clients/load/workload.h"

namespace ovq::load {

inline constexpr char kProgram[] = "ovq-load";

struct SweepOptions {
  bool on = false;
  int max_levels = 10;
  double factor = 2;       // ratio between the loads of consecutive levels
  double min_gain = 0.05;  // a level with a smaller relative gain in throughput is saturated
  absl::Duration min_time = absl::Seconds(2);  // a shorter level is inconclusive
  double min_good = 0.99;  // with --goodput: the share of good requests that a level needs
};

struct OutputOptions {
  std::string json, csv, html;  // paths of report files; empty: none
  bool detailed = false;
  bool quiet = false;
};

struct Options {
  clients::ConnectOptions connect;
  int connections = 1;

  // The load is a closed loop if neither a rate nor a trace is given.
  std::optional<int64_t> concurrency;  // closed loop: users, default 1; otherwise: the most
                                       // requests in flight
  std::optional<double> rate;
  std::string trace;  // path of a trace
  RunPlan plan;       // without the fields that other options and a sweep determine
  std::optional<absl::Duration> duration;  // default 60 s; for a trace, its last time and a minute
  SweepOptions sweep;
  int64_t warmup = 0;

  WorkloadOptions work;  // the trace is read later
  std::string prompt_file;
  std::optional<uint32_t> max_centroids;
  std::optional<float> temperature;
  absl::Duration timeout = absl::Minutes(10);

  std::optional<Goodput> goodput;
  OutputOptions output;
  bool allow_errors = false;
  std::vector<Setting> settings;  // every flag that has a value, as the reports show it

  bool open_loop() const { return rate.has_value() || !trace.empty(); }
  int64_t users() const { return concurrency.value_or(1); }              // for a closed loop
  int64_t most_in_flight() const { return concurrency.value_or(4096); }  // for an open loop
};

// Parses `args` (without the program's name). InvalidArgument names the flag and what was expected.
absl::StatusOr<Options> ParseOptions(std::span<const std::string> args);

}  // namespace ovq::load
