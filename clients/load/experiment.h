// The runs that the options ask for: a warm-up, then one run or the levels of a sweep.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "clients/load/options.h"
#include "clients/load/report.h"
#include "clients/load/runner.h"
#include "clients/load/workload.h"

namespace ovq::load {

// InvalidArgument if a prompt may be longer than the server takes.
absl::Status CheckPromptLengths(const Options& options, uint64_t max_prompt_tokens);

// Runs what result.options ask for; the levels, and of a sweep the best, go into the result. What
// goes on is told on stderr. interrupts: as Runner's.
void RunExperiment(const PromptMaker& prompts, const Calls& calls,
                   const std::atomic<int>& interrupts, Result& result);

}  // namespace ovq::load
