// Shows other threads which iteration the engine is in, for the watchdog.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace ovq::engine {

struct IterationInProgress {
  int64_t number = 0;  // of the engine's iteration, from 1
  SteadyTime began;
  // Sequences that may run in it: running answers, and prompts with prompt_tokens left to consume.
  int answers = 0, prompts = 0;
  int64_t prompt_tokens = 0;
};

// Any thread.
class IterationWatch {
 public:
  void Begin(SteadyTime now) {
    std::lock_guard lock(mutex_);
    iteration_ = IterationInProgress{.number = ++n_iterations_, .began = now};
  }
  void SetWork(int answers, int prompts, int64_t prompt_tokens) {
    std::lock_guard lock(mutex_);
    if (!iteration_) return;
    iteration_->answers = answers;
    iteration_->prompts = prompts;
    iteration_->prompt_tokens = prompt_tokens;
  }
  void End() {
    std::lock_guard lock(mutex_);
    iteration_.reset();
  }
  // None while the engine waits for work.
  std::optional<IterationInProgress> Now() const {
    std::lock_guard lock(mutex_);
    return iteration_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t n_iterations_ = 0;
  std::optional<IterationInProgress> iteration_;
};

}  // namespace ovq::engine
