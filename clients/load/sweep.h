// Which loads a sweep tries, and when it has seen enough.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "clients/load/stats.h"

namespace ovq::load {

struct SweepOptions {
  bool on = false;
  int max_levels = 10;
  double factor = 2;       // of one level's load to the next
  double min_gain = 0.05;  // a level that adds less throughput than this share has saturated
  absl::Duration min_time = absl::Seconds(2);  // a level that lasts less tells nothing
  double min_good = 0.99;  // share of good requests that a level must keep, with --goodput
};

class Sweep {
 public:
  // Loads are users (whole numbers) or requests a second.
  Sweep(const SweepOptions& options, double first_load, bool whole)
      : options_(options), whole_(whole), load_(first_load) {}

  double load() const { return load_; }  // of the level to run now
  // Judges that level: why it is the last one, or nothing if another is to follow. One that is too
  // short is the last, and cannot be the best.
  std::string Add(const Report& report);
  // The level with the highest output throughput among those that kept --goodput (all without it);
  // nullopt if none did.
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
