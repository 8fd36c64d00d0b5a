// Defines Shutdown, which handles the server's signals.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/signals.h"
#include "server/telemetry/log.h"

namespace ovq::server {

inline constexpr absl::Duration kLogFlushTimeout =
    absl::Seconds(1);  // longest wait for the log when the process ends

// Handles SIGTERM and SIGINT (drain, then exit) and SIGHUP (reload); SIGUSR1 and SIGUSR2 have no
// effect. Create it before any other thread that could receive signals (the log's thread blocks
// them).
class Shutdown {
 public:
  explicit Shutdown(Log& log)
      : log_(log), waiter_(Blocked(), [this](int signal) { OnSignal(signal); }) {}
  // After this call the first signal starts a drain; before, it ends the process.
  void Serve() { serving_ = true; }
  // Sets the function that SIGHUP calls; none (the default) ignores the signal.
  void OnHangUp(std::function<void()> reload) {
    std::lock_guard lock(mutex_);
    reload_ = std::move(reload);
  }
  void WaitForFirst() { first_.WaitForNotification(); }
  // Acts like the first signal; without effect after it. Callable on any thread while serving.
  void Drain() {
    if (!draining_.exchange(true)) first_.Notify();
  }

 private:
  static std::vector<int> Blocked() {
    const std::vector<int> signals = {SIGTERM, SIGINT, SIGHUP, SIGUSR2};
    BlockSignals(signals);
    return signals;
  }
  void OnSignal(int signal) {
    if (signal == SIGUSR2) return;
    if (signal == SIGHUP) {
      std::lock_guard lock(mutex_);
      if (reload_) reload_();
      return;
    }
    if (!serving_ || draining_) {
      log_.Info(absl::StrCat("ended by signal ", signal));
      log_.Flush(kLogFlushTimeout);
      _exit(128 + signal);
    }
    log_.Info(absl::StrCat("signal ", signal, ": draining; a second one ends at once"));
    Drain();
  }

  Log& log_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> draining_{false};
  absl::Notification first_;
  std::mutex mutex_;  // guards the next member
  std::function<void()> reload_;
  const SignalWaiter waiter_;  // last, because its thread uses the other members
};

}  // namespace ovq::server
