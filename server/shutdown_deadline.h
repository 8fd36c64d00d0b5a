// Defines ShutdownDeadline, a bound on the time that the end of the process takes.
#pragma once

#include <unistd.h>

#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/telemetry/log.h"

namespace ovq::server {

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
