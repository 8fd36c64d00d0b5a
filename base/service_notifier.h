// What systemd is told by a service of Type=notify (sd_notify(3)): one datagram to the socket that
// $NOTIFY_SOCKET names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"

namespace ovq {

// Any thread. Without a socket, or with one that takes nothing, it does nothing: whoever started
// the program will see by its silence.
class ServiceNotifier {
 public:
  // By $NOTIFY_SOCKET, and by $WATCHDOG_USEC if $WATCHDOG_PID is this process's or absent.
  static ServiceNotifier FromEnvironment();
  explicit ServiceNotifier(std::string socket, std::optional<absl::Duration> watchdog = {})
      : socket_(std::move(socket)), watchdog_(watchdog) {}

  void Ready() const { Send("READY=1"); }
  void Stopping() const { Send("STOPPING=1"); }
  void Alive() const { Send("WATCHDOG=1"); }
  // Alive is expected more often than this, if at all.
  std::optional<absl::Duration> watchdog() const { return watchdog_; }

 private:
  void Send(std::string_view text) const;

  const std::string socket_;  // a path, or @ and an abstract name; empty: none
  const std::optional<absl::Duration> watchdog_;
};

}  // namespace ovq
