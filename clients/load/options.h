// Command line of ovq-load.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "clients/common/connect_options.h"
#include "clients/load/arrivals.h"
#include "clients/load/lengths.h"
#include "clients/load/stats.h"

namespace ovq::load {

struct SweepOptions {
  bool on = false;
  int max_levels = 10;
  double factor = 2;       // of one level's load to the next
  double min_gain = 0.05;  // a level that adds less throughput than this share has saturated
  double min_good = 0.99;  // share of good requests that a level must keep, with --goodput
};

struct OutputOptions {
  std::string json, csv, html;  // files; empty: none
  bool detailed = false;
  bool quiet = false;
};

struct Options {
  ConnectOptions connect;
  int connections = 1;

  // Arrivals. Closed loop without a rate or a trace.
  std::optional<int64_t> concurrency;  // closed loop: users, default 1; else: most in flight
  std::optional<double> rate;
  ArrivalKind arrivals = ArrivalKind::kPoisson;
  double burstiness = 1;
  absl::Duration ramp_up = absl::ZeroDuration();
  std::string trace;
  double trace_speed = 1;
  SweepOptions sweep;

  // Work.
  LengthDistribution input_length = LengthDistribution::Fixed(128);
  LengthDistribution output_length = LengthDistribution::Fixed(64);
  int64_t turns = 1;
  absl::Duration think_time = absl::ZeroDuration();
  std::string prompt_file;
  std::optional<uint32_t> max_centroids;
  std::optional<float> temperature;
  uint64_t seed = 1;

  // Bounds.
  std::optional<int64_t> requests;         // default 1000; of a trace, all
  std::optional<absl::Duration> duration;  // default 60 s; of a trace, its last time and a minute
  int64_t warmup = 0;
  absl::Duration timeout = absl::Minutes(10);
  absl::Duration grace = absl::Seconds(30);

  std::optional<Goodput> goodput;
  OutputOptions output;
  bool allow_errors = false;
  bool help = false;

  bool open_loop() const { return rate.has_value() || !trace.empty(); }
  int64_t users() const { return concurrency.value_or(1); }              // closed loop
  int64_t most_in_flight() const { return concurrency.value_or(4096); }  // open loop
};

// args: without the program's name. InvalidArgument names the flag and what was expected.
absl::StatusOr<Options> ParseOptions(std::span<const std::string> args);

std::string HelpText();

}  // namespace ovq::load
