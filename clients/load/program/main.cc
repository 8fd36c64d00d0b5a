// ovq-load: loads an ovq-server and reports what its users would have seen.
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/signals.h"
#include "clients/load/experiment.h"
#include "clients/load/options.h"
#include "clients/load/program/grpc_calls.h"
#include "clients/load/report.h"

namespace ovq::load {
namespace {

constexpr int kExitErrors = 1;
constexpr int kExitUsage = 2;
constexpr size_t kMaxPromptFileBytes = size_t{16} << 20;

int Fail(int code, absl::string_view message) {
  std::fputs(absl::StrCat("ovq-load: ", message, "\n").c_str(), stderr);
  return code;
}

absl::StatusOr<PromptMaker> MakePrompts(const Options& options, const ModelFacts& model,
                                        GrpcCalls& calls) {
  if (options.prompt_file.empty()) {
    return PromptMaker(options.work.seed, static_cast<uint32_t>(model.vocab_size));
  }
  const absl::StatusOr<std::string> text = ReadFileOrPipe(options.prompt_file, kMaxPromptFileBytes);
  using Ids = absl::StatusOr<std::vector<uint32_t>>;
  Ids ids = text.ok() ? calls.Tokenize(*text) : Ids(text.status());
  if (ids.ok() && ids->empty()) {
    ids = absl::InvalidArgumentError(absl::StrCat(options.prompt_file, ": expected some text"));
  }
  if (!ids.ok()) {
    return absl::Status(ids.status().code(),
                        absl::StrCat("--prompt-file: ", ids.status().message()));
  }
  return PromptMaker(options.work.seed, *std::move(ids));
}

int ExitCode(const Result& result) {
  int64_t errors = 0, completed = 0;
  for (const Level& level : result.levels) {
    errors += level.errors();
    completed += level.report.completed;
  }
  if (completed == 0) return Fail(kExitErrors, "no request completed");
  return errors > 0 && !result.options.allow_errors ? kExitErrors : 0;
}

// All that can fail before the first request; its errors are usage errors unless the server's.
int Run(Result result) {
  Options& options = result.options;
  if (!options.trace.empty()) {
    absl::StatusOr<std::vector<TraceEntry>> trace = ReadTrace(options.trace);
    if (!trace.ok()) return Fail(kExitUsage, absl::StrCat("--trace: ", trace.status().message()));
    options.work.trace = *std::move(trace);
  }
  const absl::StatusOr<std::unique_ptr<GrpcCalls>> calls = GrpcCalls::Make(options);
  if (!calls.ok()) return Fail(kExitUsage, calls.status().message());
  const absl::StatusOr<ModelFacts> model = (*calls)->GetModel();
  if (!model.ok()) {
    return Fail(kExitErrors, absl::StrCat(options.connect.server, ": ", model.status().ToString()));
  }
  result.model = *model;
  const absl::Status lengths = CheckPromptLengths(options, model->max_prompt_tokens);
  if (!lengths.ok()) return Fail(kExitUsage, lengths.message());
  const absl::StatusOr<PromptMaker> prompts = MakePrompts(options, *model, **calls);
  if (!prompts.ok()) return Fail(kExitUsage, prompts.status().message());
  result.started = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  {
    std::atomic<int> interrupts = 0;
    const SignalWaiter waiter({SIGINT}, [&](int) { ++interrupts; });
    RunExperiment(*prompts, (*calls)->calls(), interrupts, result);
  }
  std::fputs(TextReport(result).c_str(), stdout);
  std::fflush(stdout);
  if (const absl::Status status = WriteReports(result); !status.ok()) {
    return Fail(kExitErrors, status.message());
  }
  return ExitCode(result);
}

int Main(int argc, char** argv) {
  absl::StatusOr<Options> options = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) return Fail(kExitUsage, options.status().message());
  if (options->help) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  BlockSignals({SIGINT});
  return Run({.options = *std::move(options)});
}

}  // namespace
}  // namespace ovq::load

int main(int argc, char** argv) { return ovq::load::Main(argc, argv); }
