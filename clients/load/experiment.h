// Runs what the options ask for: a warm-up, then one run or the levels of a sweep, which chooses
// the loads to try and decides when to stop.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "clients/load/options.h"
#include "clients/load/report.h"
#include "clients/load/runner.h"
#include "clients/load/workload.h"

namespace ovq::load {

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

// Returns InvalidArgument if a prompt may be longer than the server accepts.
absl::Status CheckPromptLengths(const Options& options, uint64_t max_prompt_tokens);

// Runs the experiment of `result.options`; adds its levels, and the best level of a sweep, to
// `result`. Progress goes to stderr. `interrupts` is as for Runner.
void RunExperiment(const PromptMaker& prompts, const Calls& calls,
                   const std::atomic<int>& interrupts, Result& result);

}  // namespace ovq::load
