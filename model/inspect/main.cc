// ovq-inspect prints what a model folder holds and all of its problems.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "model/inspect/inspect.h"

namespace ovq::model {
namespace {

constexpr int kExitProblems = 1;
constexpr int kExitUsage = 2;

int PrintShares(const InspectOptions& options) {
  const auto report = MeasureShares(options.folder, options.shares, [&](const std::string& line) {
    if (options.json) return;
    std::puts(line.c_str());
    std::fflush(stdout);
  });
  if (!report.ok()) {
    std::fputs(absl::StrCat("ovq-inspect: ", report.status().message(), "\n").c_str(), stderr);
    return kExitProblems;
  }
  if (options.json) std::puts(report->dump(1).c_str());
  return 0;
}

int Inspect(const std::vector<std::string>& args) {
  const absl::StatusOr<InspectOptions> options = ParseInspectOptions(args);
  if (!options.ok()) {
    std::fputs(absl::StrCat("ovq-inspect: ", options.status().message(), "\n").c_str(), stderr);
    return kExitUsage;
  }
  if (options->help) {
    std::fputs(InspectHelp().c_str(), stdout);
    return 0;
  }
  if (options->version) {
    std::puts("ovq-inspect " OVQ_VERSION);
    return 0;
  }
  if (!options->shares.file.empty()) return PrintShares(*options);
  const nlohmann::ordered_json report = InspectFolder(*options);
  using Replaces = nlohmann::ordered_json::error_handler_t;
  std::fputs(
      (options->json ? report.dump(1, ' ', false, Replaces::replace) + "\n" : ReportText(report))
          .c_str(),
      stdout);
  return report["problems"].empty() ? 0 : kExitProblems;
}

int Main(const std::vector<std::string>& args) {
  const int code = Inspect(args);
  const absl::Status written = FlushStdout();
  if (written.ok()) return code;
  std::fputs(absl::StrCat("ovq-inspect: ", written.message(), "\n").c_str(), stderr);
  return code == 0 ? kExitProblems : code;
}

}  // namespace
}  // namespace ovq::model

int main(int argc, char** argv) {
  return ovq::model::Main(std::vector<std::string>(argv + 1, argv + argc));
}
