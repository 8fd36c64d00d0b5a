// One live line on a terminal; elsewhere a line every few seconds.
#pragma once

#include <cstdint>
#include <string>

#include "clients/load/runner.h"

namespace ovq::load {

// "12.0 s: 340 completed, 0 failed, 16 in flight, 5.6 requests/s, 1204.0 tokens/s"; the speeds are
// those since `before`.
std::string ProgressLine(const Progress& now, int64_t tokens, const Progress& before,
                         int64_t tokens_before);

// Writes to stderr. One thread.
class ProgressPrinter {
 public:
  explicit ProgressPrinter(bool quiet);
  void Begin(const std::string& what);  // a run begins
  void Update(const Progress& progress, int64_t tokens);
  void End();  // the live line goes

 private:
  const bool quiet_, terminal_;
  std::string what_;
  Progress last_;
  int64_t last_tokens_ = 0;
  bool line_is_open_ = false;
};

}  // namespace ovq::load
