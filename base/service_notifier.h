// Notifications to systemd from a service of Type=notify (sd_notify(3)): one datagram each to the
// socket named by $NOTIFY_SOCKET.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"

namespace ovq {

// Any thread. Does nothing without a socket, or if the socket takes nothing; systemd then notices
// the silence.
class ServiceNotifier {
 public:
  // Reads $NOTIFY_SOCKET, and $WATCHDOG_USEC if $WATCHDOG_PID is this process's or absent.
  static ServiceNotifier FromEnvironment();
  explicit ServiceNotifier(std::string socket, std::optional<absl::Duration> watchdog = {})
      : socket_(std::move(socket)), watchdog_(watchdog) {}

  void Ready() const { Send("READY=1"); }
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }
  // Interval within which systemd expects Alive; empty: it does not.
  std::optional<absl::Duration> watchdog() const { return watchdog_; }

 private:
  void Send(std::string_view text) const;

  const std::string socket_;  // a path, or @ and an abstract name; empty: none
  const std::optional<absl::Duration> watchdog_;
};

}  // namespace ovq
