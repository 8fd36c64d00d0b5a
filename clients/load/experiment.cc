#include "clients/load/experiment.h"

#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ovq::load {
namespace {

constexpr int64_t kDefaultRequests = 1000;
constexpr absl::Duration kDefaultDuration = absl::Seconds(60);
constexpr int64_t kMaxWarmupUsers = 8;  // of an open loop
// Conversations of a part (a level, the warm-up) have indices, and so prompts, of their own.
constexpr int64_t kPartStride = int64_t{1} << 24;
constexpr int64_t kWarmupPart = 127;  // there are at most 100 levels

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

absl::Status CheckPromptLengths(const Options& options, const std::vector<TraceEntry>& trace,
                                uint64_t max_prompt_tokens) {
  int64_t longest = trace.empty() ? options.input_length.max() : 0;
  for (const TraceEntry& entry : trace) longest = std::max(longest, entry.input_tokens);
  if (max_prompt_tokens == 0 || static_cast<uint64_t>(longest) <= max_prompt_tokens) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(trace.empty() ? "--input-length" : absl::StrCat("--trace: ", options.trace),
                   ": expected prompts of at most ", max_prompt_tokens,
                   " tokens (what the server takes), got up to ", longest));
}

Experiment::Experiment(const ExperimentSetup& setup, ProgressPrinter& progress)
    : setup_(setup), options_(setup.options), progress_(progress) {}

std::vector<Level> Experiment::Run(const std::function<void(const Level&)>& on_level) {
  WarmUp();
  const double first = options_.rate            ? *options_.rate
                       : options_.trace.empty() ? static_cast<double>(options_.users())
                                                : 0;
  std::vector<Level> levels;
  if (!options_.sweep.on) {
    levels.push_back(RunLevel(first, 0, "load"));
    return levels;
  }
  Sweep sweep(options_.sweep, first, /*whole=*/!options_.rate.has_value());
  while (levels.empty() || levels.back().verdict == Sweep::Verdict::kGoOn) {
    const double load = sweep.load();
    Level level = RunLevel(load, static_cast<int64_t>(levels.size()),
                           absl::StrFormat(options_.rate ? "%g requests/s" : "%g users", load));
    // A run that was cut short says nothing about saturation.
    const bool whole = !level.run.interrupted;
    if (whole) level.verdict = sweep.Add(level.report);
    on_level(levels.emplace_back(std::move(level)));
    if (!whole || interrupted()) break;
  }
  best_ = sweep.best();
  return levels;
}

RunPlan Experiment::PlanOf(double load) const {
  RunPlan plan;
  plan.kind = !options_.trace.empty() ? RunPlan::Kind::kTrace
              : options_.rate         ? RunPlan::Kind::kRate
                                      : RunPlan::Kind::kClosed;
  plan.arrivals = {.kind = options_.arrivals,
                   .rate = load,
                   .burstiness = options_.burstiness,
                   .ramp_s = absl::ToDoubleSeconds(options_.ramp_up),
                   .seed = options_.seed};
  if (plan.kind == RunPlan::Kind::kClosed) plan.users = static_cast<int64_t>(load);
  plan.max_in_flight = options_.most_in_flight();
  plan.think_s = absl::ToDoubleSeconds(options_.think_time);
  plan.duration_s = absl::ToDoubleSeconds(options_.duration.value_or(kDefaultDuration));
  if (!options_.duration && !setup_.trace.empty()) {
    plan.duration_s += setup_.trace.back().at_s / options_.trace_speed;
  }
  plan.grace_s = absl::ToDoubleSeconds(options_.grace);
  plan.seed = options_.seed;
  return plan;
}

WorkloadOptions Experiment::WorkOf(int64_t part) const {
  const auto all = static_cast<int64_t>(setup_.trace.size());
  return {.input = options_.input_length,
          .output = options_.output_length,
          .turns = options_.turns,
          .seed = options_.seed,
          .max_requests = options_.requests.value_or(all > 0 ? all : kDefaultRequests),
          .first_index = part * kPartStride,
          .trace = setup_.trace,
          .trace_speed = options_.trace_speed};
}

void Experiment::WarmUp() {
  if (options_.warmup == 0) return;
  progress_.Begin("warm-up");
  RunPlan plan = PlanOf(1);
  plan.kind = RunPlan::Kind::kClosed;
  plan.arrivals.ramp_s = 0;
  plan.think_s = 0;
  plan.users = options_.open_loop() ? std::min(kMaxWarmupUsers, options_.most_in_flight())
                                    : options_.users();
  WorkloadOptions work = WorkOf(kWarmupPart);
  work.max_requests = options_.warmup;
  for (TraceEntry& entry : work.trace) {  // its lengths, at once
    entry.at_s = 0;
    entry.session.clear();
  }
  RunPart(plan, std::move(work));
  progress_.End();
}

Level Experiment::RunLevel(double load, int64_t part, const std::string& name) {
  progress_.Begin(name);
  Level level;
  level.load = load;
  const double cpu_begin = CpuSeconds();
  const Clock::time_point begin = Clock::now();
  level.run = RunPart(PlanOf(load), WorkOf(part));
  const double wall = SecondsBetween(begin, Clock::now());
  level.client_cpu = wall > 0 ? (CpuSeconds() - cpu_begin) / wall : 0;
  level.report = MakeReport(level.run.records, options_.goodput);
  progress_.End();
  return level;
}

RunResult Experiment::RunPart(const RunPlan& plan, WorkloadOptions work) {
  Workload workload(std::move(work));
  Runner runner(plan, workload, setup_.prompts, setup_.calls, [this](const Progress& progress) {
    progress_.Update(progress, setup_.tokens_received());
  });
  {
    const std::lock_guard lock(mutex_);
    runner_ = &runner;
    for (int i = 0; i < interrupts_; ++i) runner.Interrupt();
  }
  RunResult result = runner.Run();
  const std::lock_guard lock(mutex_);
  runner_ = nullptr;
  return result;
}

void Experiment::Interrupt() {
  const std::lock_guard lock(mutex_);
  ++interrupts_;
  if (runner_ != nullptr) runner_->Interrupt();
}

bool Experiment::interrupted() {
  const std::lock_guard lock(mutex_);
  return interrupts_ > 0;
}

}  // namespace ovq::load
