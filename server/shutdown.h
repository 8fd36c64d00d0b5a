// Defines how the process ends: Shutdown handles its signals, ShutdownDeadline bounds the time.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
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

// Ends the process if it still runs after `time`: a batch that hangs would block the normal end for
// ever.
class ShutdownDeadline {
 public:
  // `time` is the longest time that a drain may take.
  ShutdownDeadline(absl::Duration time, Log& log)
      : thread_([this, time, &log] {
          if (ended_.WaitForNotificationWithTimeout(time + kMargin)) return;
          log.Error(absl::InternalError(
              absl::StrCat("drain: the server hangs: it is still there ",
                           absl::FormatDuration(kMargin), " after the time of its drain, ",
                           absl::FormatDuration(time), ", and ends as it is")));
          log.Flush(absl::Seconds(1));
          _exit(1);
        }) {}
  ~ShutdownDeadline() {
    ended_.Notify();
    thread_.join();
  }

 private:
  static constexpr absl::Duration kMargin = absl::Seconds(5);

  absl::Notification ended_;
  std::thread thread_;
};

}  // namespace ovq::server
