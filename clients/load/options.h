// Command line of ovq-load.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/flags.h"
#include "clients/common/connect_options.h"
#include "clients/common/program.h"
#include "clients/load/runner.h"
#include "clients/load/stats.h"
#include "clients/load/sweep.h"
#include "clients/load/workload.h"

namespace ovq::load {

struct OutputOptions {
  std::string json, csv, html;  // files; empty: none
  bool detailed = false;
  bool quiet = false;
};

struct Options {
  ConnectOptions connect;
  int connections = 1;

  // Closed loop without a rate or a trace.
  std::optional<int64_t> concurrency;  // closed loop: users, default 1; else: most in flight
  std::optional<double> rate;
  std::string trace;  // a file
  RunPlan plan;       // without what follows from other options and from a sweep
  std::optional<absl::Duration> duration;  // default 60 s; of a trace, its last time and a minute
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
  std::vector<Setting> settings;  // of all flags with a value, as the reports show them
  InfoRequest info_request = InfoRequest::kNothing;  // in place of a run

  bool open_loop() const { return rate.has_value() || !trace.empty(); }
  int64_t users() const { return concurrency.value_or(1); }              // closed loop
  int64_t most_in_flight() const { return concurrency.value_or(4096); }  // open loop
};

// args: without the program's name. InvalidArgument names the flag and what was expected.
absl::StatusOr<Options> ParseOptions(std::span<const std::string> args);

std::string HelpText();

}  // namespace ovq::load
