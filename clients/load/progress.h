// One live line on a terminal; elsewhere a line every few seconds.
#pragma once

#include <string>

#include "clients/load/runner.h"

namespace ovq::load {

// Of one run, on stderr. One thread.
class ProgressPrinter {
 public:
  ProgressPrinter(std::string name, bool quiet);
  ~ProgressPrinter();  // the live line goes
  // "load: 12.0 s: 340 completed, 0 failed, 16 in flight, 5.6 requests/s, 1204.0 tokens/s"; the
  // speeds are those since the line before.
  void Update(const Progress& now);

 private:
  const std::string name_;
  const bool quiet_, terminal_;
  Progress before_ = {.tokens = -1};  // unknown before the first update
  bool line_is_open_ = false;
};

}  // namespace ovq::load
