// ovq-load: sends load to an ovq-server and reports what its users would have experienced.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/signals.h"
#include "clients/common/program.h"
#include "clients/load/experiment.h"
#include "clients/load/options.h"
#include "clients/load/program/grpc_calls.h"
#include "clients/load/report.h"

namespace ovq::load {
namespace {

constexpr size_t kMaxPromptFileBytes = size_t{16} << 20;

int Fail(int code, absl::string_view message) { return clients::Fail(kProgram, code, message); }

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

// Quotes the words that have other than plain characters.
std::string CommandLineText(int argc, char** argv) {
  std::string text;
  for (int i = 0; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
      return absl::ascii_isalnum(c) || std::string_view("-_=./:,+@%").find(c) != std::string::npos;
    });
    absl::StrAppend(
        &text, i == 0 ? "" : " ",
        plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'"));
  }
  return text;
}

std::string HostText() {
  std::array<char, 256> name = {};
  gethostname(name.data(), name.size() - 1);
  return absl::StrCat(name.data(), ", ", std::thread::hardware_concurrency(), " processors");
}

int ExitCode(const Result& result) {
  int64_t errors = 0, completed = 0;
  for (const Level& level : result.levels) {
    errors += level.errors();
    completed += level.report.completed;
  }
  if (completed == 0) return Fail(clients::kExitError, "no request completed");
  const auto interrupted = [](const Level& level) { return level.run.interrupted; };
  if (std::ranges::any_of(result.levels, interrupted)) return clients::kExitInterrupted;
  return errors > 0 && !result.options.allow_errors ? clients::kExitError : 0;
}

// Counts Ctrl-C while requests run, which ends the run and reports it. Before that there is nothing
// to report, and Ctrl-C ends the program.
struct Interrupts {
  std::atomic<bool> running = false;
  std::atomic<int> count = 0;

  void Handle() {
    if (!running) _exit(clients::kExitInterrupted);
    ++count;
  }
};

// Prepares and runs everything. Errors before the first request are usage errors unless they are
// the server's.
int Run(Result result, Interrupts& interrupts) {
  Options& options = result.options;
  if (!options.trace.empty()) {
    absl::StatusOr<std::vector<TraceEntry>> trace = ReadTrace(options.trace);
    if (!trace.ok())
      return Fail(clients::kExitUsage, absl::StrCat("--trace: ", trace.status().message()));
    options.work.trace = *std::move(trace);
  }
  if (const absl::Status files = CheckReportFiles(options.output); !files.ok()) {
    return Fail(clients::kExitUsage, files.message());
  }
  const absl::StatusOr<std::unique_ptr<GrpcCalls>> calls = GrpcCalls::Make(options);
  if (!calls.ok()) return Fail(clients::kExitUsage, calls.status().message());
  const absl::StatusOr<ModelFacts> model = (*calls)->GetModel();
  if (!model.ok()) {
    return Fail(clients::kExitError,
                absl::StrCat(options.connect.server, ": ", model.status().ToString()));
  }
  result.model = *model;
  const absl::Status lengths = CheckPromptLengths(options, model->max_prompt_tokens);
  if (!lengths.ok()) return Fail(clients::kExitUsage, lengths.message());
  const absl::StatusOr<PromptMaker> prompts = MakePrompts(options, *model, **calls);
  if (!prompts.ok()) return Fail(clients::kExitUsage, prompts.status().message());
  result.started = absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone());
  interrupts.running = true;
  RunExperiment(*prompts, (*calls)->calls(), interrupts.count, result);
  std::fputs(TextReport(result).c_str(), stdout);
  std::fflush(stdout);
  if (const absl::Status status = WriteReports(result); !status.ok()) {
    return Fail(clients::kExitError, status.message());
  }
  return ExitCode(result);
}

int Main(int argc, char** argv) {
  absl::StatusOr<Options> options = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!options.ok()) return Fail(clients::kExitUsage, options.status().message());
  BlockSignals({SIGINT});
  Interrupts interrupts;
  const SignalWaiter waiter({SIGINT}, [&](int) { interrupts.Handle(); });
  Result result;
  result.options = *std::move(options);
  result.command_line = CommandLineText(argc, argv);
  result.host = HostText();
  return clients::EndOutput(kProgram, Run(std::move(result), interrupts));
}

}  // namespace
}  // namespace ovq::load

int main(int argc, char** argv) { return ovq::load::Main(argc, argv); }
