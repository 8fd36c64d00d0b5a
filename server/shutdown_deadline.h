// An end of the process that nothing holds up.
#pragma once

#include <unistd.h>

#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/telemetry/log.h"

namespace ovq {

// Ends the process if it is still there after `time`: a step that hangs holds up the end for ever.
class ShutdownDeadline {
 public:
  // time: that the drain may take.
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

}  // namespace ovq
