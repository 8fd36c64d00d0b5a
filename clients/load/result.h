// All that the reports tell of: what was run against what, and what came of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "clients/load/options.h"
#include "clients/load/runner.h"
#include "clients/load/stats.h"
#include "clients/load/sweep.h"

namespace ovq::load {

struct ModelFacts {
  std::string name, fingerprint, device, server_version;
  uint64_t vocab_size = 0;
  uint64_t max_prompt_tokens = 0;
};

// One run; of a sweep, one of several.
struct Level {
  double load = 0;  // users (closed loop), or requests a second; of a trace 0
  Report report;
  RunResult run;
  double client_cpu = 0;  // mean number of cores that this client used
  Sweep::Verdict verdict = Sweep::Verdict::kGoOn;

  // Requests that failed and sessions that could not be deleted.
  int64_t errors() const { return report.failed + run.delete_errors.count; }
};

struct Result {
  Options options = {};
  ModelFacts model = {};
  std::string started = {};         // RFC 3339
  std::vector<Level> levels = {};   // one at least
  std::optional<size_t> best = {};  // of a sweep: Sweep::best

  // The one whose figures stand for the whole: the best of a sweep, else the last.
  const Level& main_level() const { return levels[best.value_or(levels.size() - 1)]; }
};

// "closed loop, 16 users", "poisson arrivals, 5 requests/s", "trace FILE".
std::string DescribeLoad(const Options& options, double load);

}  // namespace ovq::load
