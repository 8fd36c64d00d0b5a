// What the engine is doing at this moment, for those who look whether it stands still.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>

#include "base/clock.h"

namespace ovq {

struct StepInProgress {
  int64_t number = 0;  // of the engine's turn, from 1
  SteadyTime began;
  // Running answers, and prompts with so many tokens still to be read.
  int answers = 0, prompts = 0;
  int64_t prompt_tokens = 0;
};

// Any thread.
class StepWatch {
 public:
  void Begin(SteadyTime now) {
    std::lock_guard lock(mutex_);
    step_ = StepInProgress{.number = ++turns_, .began = now};
  }
  // What the turn's step takes its rows from.
  void SetRows(int answers, int prompts, int64_t prompt_tokens) {
    std::lock_guard lock(mutex_);
    if (!step_) return;
    step_->answers = answers;
    step_->prompts = prompts;
    step_->prompt_tokens = prompt_tokens;
  }
  void End() {
    std::lock_guard lock(mutex_);
    step_.reset();
  }
  // None while the engine waits for work.
  std::optional<StepInProgress> Now() const {
    std::lock_guard lock(mutex_);
    return step_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t turns_ = 0;
  std::optional<StepInProgress> step_;
};

}  // namespace ovq
