// Defines Sweep, which chooses the loads to try and decides when to stop.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "clients/load/stats.h"

namespace ovq::load {

struct SweepOptions {
  bool on = false;
  int max_levels = 10;
  double factor = 2;       // ratio between the loads of consecutive levels
  double min_gain = 0.05;  // a level with a smaller relative gain in throughput is saturated
  absl::Duration min_time = absl::Seconds(2);  // a shorter level is inconclusive
  double min_good = 0.99;  // with --goodput: the share of good requests that a level needs
};

class Sweep {
 public:
  // Loads are users (whole numbers) or requests per second.
  Sweep(const SweepOptions& options, double first_load, bool whole)
      : options_(options), whole_(whole), load_(first_load) {}

  double load() const { return load_; }  // load of the level to run next
  // Judges the level that ran at load(). Returns the reason why it is the last one, or "" if
  // another follows. A level that was too short is the last and cannot be the best.
  std::string Add(const Report& report);
  // Returns the level with the highest output throughput among those that met --goodput (all
  // without it); nullopt if none did.
  std::optional<size_t> best() const { return best_; }

 private:
  const SweepOptions options_;
  const bool whole_;
  double load_;
  int levels_ = 0;
  std::optional<size_t> best_;
  double best_throughput_ = 0;
};

}  // namespace ovq::load
