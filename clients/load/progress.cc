#include "clients/load/progress.h"

#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ovq::load {
namespace {

constexpr double kTerminalInterval_s = 0.5;
constexpr double kPlainInterval_s = 5;

}  // namespace

std::string ProgressLine(const Progress& now, int64_t tokens, const Progress& before,
                         int64_t tokens_before) {
  const double seconds = now.elapsed_s - before.elapsed_s;
  const auto speed = [&](int64_t n) { return seconds > 0 ? static_cast<double>(n) / seconds : 0; };
  return absl::StrFormat(
      "%.1f s: %d completed, %d failed, %d in flight, %.1f requests/s, %.1f tokens/s",
      now.elapsed_s, now.completed, now.failed, now.in_flight,
      speed(now.completed - before.completed), speed(tokens - tokens_before));
}

ProgressPrinter::ProgressPrinter(bool quiet)
    : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressPrinter::Begin(const std::string& what) {
  what_ = what;
  last_ = {};
  last_tokens_ = -1;
}

void ProgressPrinter::Update(const Progress& progress, int64_t tokens) {
  if (quiet_) return;
  if (last_tokens_ < 0) last_tokens_ = tokens;
  const double interval = terminal_ ? kTerminalInterval_s : kPlainInterval_s;
  if (progress.elapsed_s - last_.elapsed_s < interval) return;
  const std::string line =
      absl::StrCat(what_, ": ", ProgressLine(progress, tokens, last_, last_tokens_));
  // Carriage return and "erase the line": the next update takes its place.
  std::fputs(terminal_ ? absl::StrCat("\r\033[K", line).c_str() : absl::StrCat(line, "\n").c_str(),
             stderr);
  line_is_open_ = terminal_;
  last_ = progress;
  last_tokens_ = tokens;
}

void ProgressPrinter::End() {
  if (line_is_open_) std::fputs("\r\033[K", stderr);
  line_is_open_ = false;
}

}  // namespace ovq::load
