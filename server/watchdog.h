// Defines the watchdog, which detects a hanging engine and reports it to balancers, operators and
// the service manager.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/service_notifier.h"
#include "server/engine/common/iteration_watch.h"

namespace ovq::server {

// Decides whether batches end in time. Not thread-safe.
class HangDetector {
 public:
  explicit HangDetector(absl::Duration timeout) : timeout_(timeout) {}  // 0: no limit

  enum class Verdict : uint8_t { kGood, kHangs, kHangsStill, kEnded };
  // Returns kHangs once for a batch that takes longer than the timeout, kHangsStill while it goes
  // on and kEnded once when it is over.
  Verdict Check(const std::optional<engine::IterationInProgress>& step, SteadyTime now);

 private:
  absl::Duration timeout_;
  int64_t hanging_ = 0;  // number of the batch that hangs; 0: none
};

class Watchdog {
 public:
  struct Reports {
    std::function<void(const engine::IterationInProgress&, absl::Duration)> hangs;
    std::function<void()> ended;  // called when the hanging batch ends
  };
  // Runs on its own thread until it is destroyed. Notifies `notifier` as often as that requires,
  // but not while a batch hangs. `step` and the reports are called on that thread.
  Watchdog(absl::Duration timeout, const ServiceNotifier& notifier,
           std::function<std::optional<engine::IterationInProgress>()> step, Reports reports);
  ~Watchdog();

 private:
  void Run();

  const absl::Duration timeout_, interval_;
  const ServiceNotifier& notifier_;
  const std::function<std::optional<engine::IterationInProgress>()> in_progress_;
  const Reports reports_;
  absl::Notification ending_;
  std::thread thread_;
};

}  // namespace ovq::server
