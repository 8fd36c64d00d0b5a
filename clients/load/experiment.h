// Runs what the options ask for: a warm-up, then one run or the levels of a sweep.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "clients/load/options.h"
#include "clients/load/report.h"
#include "clients/load/runner.h"
#include "clients/load/workload.h"

namespace ovq::load {

// Returns InvalidArgument if a prompt may be longer than the server accepts.
absl::Status CheckPromptLengths(const Options& options, uint64_t max_prompt_tokens);

// Runs the experiment of `result.options`; adds its levels, and the best level of a sweep, to
// `result`. Progress goes to stderr. `interrupts` is as for Runner.
void RunExperiment(const PromptMaker& prompts, const Calls& calls,
                   const std::atomic<int>& interrupts, Result& result);

}  // namespace ovq::load
