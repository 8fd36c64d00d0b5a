#include "clients/load/progress.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_format.h"

namespace ovq::load {
namespace {

constexpr double kTerminalInterval_s = 0.5;
constexpr double kPlainInterval_s = 5;
constexpr char kEraseLine[] = "\r\033[K";

}  // namespace

ProgressPrinter::ProgressPrinter(std::string name, bool quiet)
    : name_(std::move(name)), quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressPrinter::~ProgressPrinter() {
  if (line_is_open_) std::fputs(kEraseLine, stderr);
}

void ProgressPrinter::Update(const Progress& now) {
  if (before_.tokens < 0) before_.tokens = now.tokens;
  const double seconds = now.elapsed_s - before_.elapsed_s;
  if (quiet_ || seconds < (terminal_ ? kTerminalInterval_s : kPlainInterval_s)) return;
  const auto speed = [&](int64_t n) { return static_cast<double>(n) / seconds; };
  // On a terminal the next update takes its place.
  absl::FPrintF(stderr,
                "%s%s: %.1f s: %d completed, %d failed, %d in flight, %.1f requests/s, %.1f "
                "tokens/s%s",
                terminal_ ? kEraseLine : "", name_, now.elapsed_s, now.completed, now.failed,
                now.in_flight, speed(now.completed - before_.completed),
                speed(now.tokens - before_.tokens), terminal_ ? "" : "\n");
  line_is_open_ = terminal_;
  before_ = now;
}

}  // namespace ovq::load
