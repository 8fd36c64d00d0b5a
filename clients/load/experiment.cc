#include "clients/load/experiment.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ovq::load {
namespace {

constexpr int64_t kMaxWarmupUsers = 8;  // for an open loop
// Each part (a level, the warm-up) has conversation indices of its own, and so prompts of its own.
constexpr int64_t kPartStride = int64_t{1} << 24;
constexpr int64_t kWarmupPart = 127;  // there are at most 100 levels

constexpr double kTerminalInterval_s = 0.5;
constexpr double kPlainInterval_s = 5;
constexpr char kEraseLine[] = "\r\033[K";

// Prints a run's progress to stderr: one live line on a terminal, elsewhere a line every few
// seconds.
class ProgressPrinter {
 public:
  ProgressPrinter(std::string name, bool quiet) : name_(std::move(name)), quiet_(quiet) {}
  ~ProgressPrinter() {
    if (line_is_open_) std::fputs(kEraseLine, stderr);
  }
  // Prints "load: 12.0 s: 340 completed, 0 failed, 16 in flight, 5.6 requests/s, 1204.0 tokens/s";
  // speeds are averages since the previous line.
  void Update(const Progress& now) {
    if (before_.tokens < 0) before_.tokens = now.tokens;
    const double seconds = now.elapsed_s - before_.elapsed_s;
    if (quiet_ || seconds < (terminal_ ? kTerminalInterval_s : kPlainInterval_s)) return;
    const auto speed = [&](int64_t n) { return static_cast<double>(n) / seconds; };
    // On a terminal the next update overwrites this line.
    absl::FPrintF(stderr,
                  "%s%s: %.1f s: %d completed, %d failed, %d in flight, %.1f requests/s, %.1f "
                  "tokens/s%s",
                  terminal_ ? kEraseLine : "", name_, now.elapsed_s, now.completed, now.failed,
                  now.in_flight, speed(now.completed - before_.completed),
                  speed(now.tokens - before_.tokens), terminal_ ? "" : "\n");
    line_is_open_ = terminal_;
    before_ = now;
  }

 private:
  const std::string name_;
  const bool quiet_, terminal_ = isatty(STDERR_FILENO) != 0;
  Progress before_ = {.tokens = -1};  // no update yet
  bool line_is_open_ = false;
};

double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

RunPlan MakeRunPlan(const Options& options, double load) {
  RunPlan plan = options.plan;
  plan.kind = !options.trace.empty() ? RunPlan::Kind::kTrace
              : options.rate         ? RunPlan::Kind::kRate
                                     : RunPlan::Kind::kClosed;
  plan.arrivals.rate = load;
  plan.arrivals.seed = options.work.seed;
  if (!options.open_loop()) plan.users = static_cast<int64_t>(load);
  // In a closed loop the users themselves are the bound; a sweep goes beyond --concurrency.
  plan.max_in_flight = options.open_loop() ? options.most_in_flight() : plan.users;
  const std::vector<TraceEntry>& trace = options.work.trace;
  const double last_s = trace.empty() ? 0 : trace.back().at_s / options.work.trace_speed;
  plan.duration = options.duration.value_or(plan.duration + absl::Seconds(last_s));
  return plan;
}

// Inputs shared by all runs of an experiment.
struct Experiment {
  const Options& options;
  const PromptMaker& prompts;
  const Calls& calls;
  const std::atomic<int>& interrupts;

  RunResult Run(const std::string& name, const RunPlan& plan, WorkloadOptions work,
                int64_t part) const {
    work.first_index = part * kPartStride;
    Workload workload(std::move(work));
    ProgressPrinter progress(name, options.output.quiet);
    return Runner(plan, workload, prompts, calls, interrupts,
                  [&](const Progress& now) { progress.Update(now); })
        .Run();
  }

  void WarmUp() const {
    RunPlan plan = MakeRunPlan(options, 1);
    plan.kind = RunPlan::Kind::kClosed;
    plan.arrivals.ramp = plan.think_time = absl::ZeroDuration();
    plan.users =
        options.open_loop() ? std::min(kMaxWarmupUsers, options.most_in_flight()) : options.users();
    plan.max_in_flight = plan.users;
    WorkloadOptions work = options.work;
    work.max_requests = options.warmup;
    for (TraceEntry& entry : work.trace) {  // a trace's lengths, all arriving at once
      entry.at_s = 0;
      entry.session.clear();
    }
    Run("warm-up", plan, std::move(work), kWarmupPart);
  }

  Level RunLevel(const std::string& name, double load, int64_t part) const {
    Level level;
    level.load = load;
    const double cpu_begin = CpuSeconds();
    const Clock::time_point begin = Clock::now();
    level.run = Run(name, MakeRunPlan(options, load), options.work, part);
    const double wall = SecondsBetween(begin, Clock::now());
    level.client_cpu = wall > 0 ? (CpuSeconds() - cpu_begin) / wall : 0;
    level.report = MakeReport(level.run, options.goodput);
    return level;
  }
};

}  // namespace

std::string Sweep::Add(const Report& report) {
  const int level = levels_++;
  if (report.completed == 0) return "nothing completed";
  if (report.duration_s < absl::ToDoubleSeconds(options_.min_time)) return "too short to tell";
  if (report.good_fraction() < options_.min_good) return "goodput broken";
  const double before = best_throughput_;
  if (report.output_throughput > best_throughput_) {
    best_throughput_ = report.output_throughput;
    best_ = level;
  }
  if (level > 0 && report.output_throughput < before * (1 + options_.min_gain)) return "saturated";
  if (levels_ == options_.max_levels) return "last level";
  const double next = load_ * options_.factor;
  load_ = whole_ ? std::max(std::round(next), load_ + 1) : next;
  return "";
}

absl::Status CheckPromptLengths(const Options& options, uint64_t max_prompt_tokens) {
  const std::vector<TraceEntry>& trace = options.work.trace;
  int64_t longest = trace.empty() ? options.work.input.max() : 0;
  for (const TraceEntry& entry : trace) longest = std::max(longest, entry.input_tokens);
  if (max_prompt_tokens == 0 || static_cast<uint64_t>(longest) <= max_prompt_tokens) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(trace.empty() ? "--input-length" : absl::StrCat("--trace: ", options.trace),
                   ": expected prompts of at most ", max_prompt_tokens,
                   " tokens (what the server takes), got up to ", longest));
}

void RunExperiment(const PromptMaker& prompts, const Calls& calls,
                   const std::atomic<int>& interrupts, Result& result) {
  const Options& options = result.options;
  const Experiment experiment{options, prompts, calls, interrupts};
  if (options.warmup > 0) experiment.WarmUp();
  const double first = options.rate.value_or(static_cast<double>(options.users()));
  if (!options.sweep.on) {
    result.levels.push_back(experiment.RunLevel("load", options.trace.empty() ? first : 0, 0));
    return;
  }
  // The table grows line by line on stderr; stdout gets it once, complete.
  const auto tell = [&](const std::string& line) {
    if (!options.output.quiet) std::fputs(line.c_str(), stderr);
  };
  Sweep sweep(options.sweep, first, /*whole=*/!options.rate.has_value());
  do {
    const double load = sweep.load();
    const std::string name = absl::StrFormat(options.rate ? "%g requests/s" : "%g users", load);
    const int64_t part = result.levels.size();
    Level& level = result.levels.emplace_back(experiment.RunLevel(name, load, part));
    // An interrupted run says nothing about saturation.
    if (!level.run.interrupted) level.verdict = sweep.Add(level.report);
    if (part == 0) tell(SweepHeader(options));
    tell(SweepLine(level));
  } while (result.levels.back().verdict.empty() && interrupts == 0);
  result.best = sweep.best();
}

}  // namespace ovq::load
