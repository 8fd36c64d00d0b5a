#include "base/service_notifier.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"

namespace ovq {
namespace {

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

ServiceNotifier ServiceNotifier::FromEnvironment() {
  std::optional<absl::Duration> watchdog;
  int64_t microseconds = 0, pid = 0;
  const std::string of = Variable("WATCHDOG_PID");
  const bool ours = of.empty() || (absl::SimpleAtoi(of, &pid) && pid == getpid());
  if (ours && absl::SimpleAtoi(Variable("WATCHDOG_USEC"), &microseconds) && microseconds > 0) {
    watchdog = absl::Microseconds(microseconds);
  }
  return ServiceNotifier(Variable("NOTIFY_SOCKET"), watchdog);
}

void ServiceNotifier::Send(std::string_view text) const {
  sockaddr_un address = {};
  if (socket_.empty() || socket_.size() >= sizeof(address.sun_path)) return;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_.data(), socket_.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return;
  const size_t size = offsetof(sockaddr_un, sun_path) + socket_.size();
  (void)sendto(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT,
               reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(size));
  close(socket);
}

}  // namespace ovq
