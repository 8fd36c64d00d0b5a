// The runs that the options ask for: a warm-up, then one run or the levels of a sweep.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "clients/load/options.h"
#include "clients/load/progress.h"
#include "clients/load/result.h"
#include "clients/load/runner.h"
#include "clients/load/trace.h"
#include "clients/load/workload.h"

namespace ovq::load {

struct ExperimentSetup {
  Options options;
  std::vector<TraceEntry> trace;  // of --trace
  PromptMaker prompts;
  Calls calls;
  std::function<int64_t()> tokens_received;  // so far, for the progress line
};

// InvalidArgument if a prompt may be longer than the server takes.
absl::Status CheckPromptLengths(const Options& options, const std::vector<TraceEntry>& trace,
                                uint64_t max_prompt_tokens);

// Run is for one thread, once; Interrupt for any.
class Experiment {
 public:
  Experiment(const ExperimentSetup& setup, ProgressPrinter& progress);

  // on_level is told each level of a sweep as it ends.
  std::vector<Level> Run(const std::function<void(const Level&)>& on_level);
  std::optional<size_t> best() const { return best_; }  // of a sweep
  // The first call lets running requests finish for a moment, the second does not.
  void Interrupt();

 private:
  RunPlan PlanOf(double load) const;
  WorkloadOptions WorkOf(int64_t part) const;
  void WarmUp();
  Level RunLevel(double load, int64_t part, const std::string& name);
  RunResult RunPart(const RunPlan& plan, WorkloadOptions work);
  bool interrupted();

  const ExperimentSetup& setup_;
  const Options& options_;
  ProgressPrinter& progress_;
  std::optional<size_t> best_;
  std::mutex mutex_;  // guards the next two
  Runner* runner_ = nullptr;
  int interrupts_ = 0;
};

}  // namespace ovq::load
