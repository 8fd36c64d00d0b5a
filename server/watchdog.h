// Looks whether the engine stands still, and says so where balancers, operators and the service
// manager look.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/service_notifier.h"
#include "server/engine/iteration_watch.h"

namespace ovq {

// Whether one step after another ends in time. Not thread-safe.
class HangDetector {
 public:
  explicit HangDetector(absl::Duration timeout) : timeout_(timeout) {}  // 0: any time will do

  enum class Verdict : uint8_t { kGood, kHangs, kHangsStill, kEnded };
  // kHangs once for a step that takes longer than the timeout, kEnded once when it is over.
  Verdict Check(const std::optional<IterationInProgress>& step, SteadyTime now);

 private:
  absl::Duration timeout_;
  int64_t hanging_ = 0;  // the number of the step that hangs; 0: none
};

class Watchdog {
 public:
  struct Reports {
    std::function<void(const IterationInProgress&, absl::Duration)> hangs;
    std::function<void()> ended;  // the step that hung
  };
  // On a thread of its own from here to the end. `notifier` hears of a server that is alive as
  // often as it wants to, but not while a step hangs. `step` and the reports are used by that
  // thread.
  Watchdog(absl::Duration timeout, const ServiceNotifier& notifier,
           std::function<std::optional<IterationInProgress>()> step, Reports reports);
  ~Watchdog();

 private:
  void Run();

  const absl::Duration timeout_, interval_;
  const ServiceNotifier& notifier_;
  const std::function<std::optional<IterationInProgress>()> in_progress_;
  const Reports reports_;
  absl::Notification ending_;
  std::thread thread_;
};

}  // namespace ovq
