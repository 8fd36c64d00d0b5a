#include "base/service_notifier.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

namespace ovq {
namespace {

// The socket of a service manager: a path, or an abstract name after @.
class Manager {
 public:
  explicit Manager(const std::string& name) : socket_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const size_t size = offsetof(sockaddr_un, sun_path) + name.size();
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(size)),
              0);
  }
  ~Manager() { close(socket_); }
  std::string Next() const {
    char text[64];
    const ssize_t n = recv(socket_, text, sizeof(text), MSG_DONTWAIT);
    return n < 0 ? "" : std::string(text, static_cast<size_t>(n));
  }

 private:
  const int socket_;
};

TEST(ServiceNotifier, TellsASocketWithAPathAndOneWithout) {
  const std::string path = testing::TempDir() + "/notify" + std::to_string(getpid());
  for (const std::string& name : {path, "@ovq-notify-test-" + std::to_string(getpid())}) {
    const Manager manager(name);
    const ServiceNotifier notifier(name);
    notifier.Ready();
    notifier.Alive();
    notifier.Stopping();
    EXPECT_EQ(manager.Next(), "READY=1");
    EXPECT_EQ(manager.Next(), "WATCHDOG=1");
    EXPECT_EQ(manager.Next(), "STOPPING=1");
    EXPECT_EQ(manager.Next(), "");
  }
  unlink(path.c_str());
  ServiceNotifier("").Ready();
  ServiceNotifier("/nonexistent/socket").Ready();
  ServiceNotifier(std::string(1000, 'x')).Ready();
}

TEST(ServiceNotifier, TheWatchdogIsThisProcesssOrNobodys) {
  setenv("NOTIFY_SOCKET", "@none", 1);
  setenv("WATCHDOG_USEC", "30000000", 1);
  unsetenv("WATCHDOG_PID");
  EXPECT_EQ(ServiceNotifier::FromEnvironment().watchdog(), absl::Seconds(30));
  setenv("WATCHDOG_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_EQ(ServiceNotifier::FromEnvironment().watchdog(), absl::Seconds(30));
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(ServiceNotifier::FromEnvironment().watchdog(), std::nullopt);
  unsetenv("WATCHDOG_PID");
  for (const char* wrong : {"0", "-5", "soon", ""}) {
    setenv("WATCHDOG_USEC", wrong, 1);
    EXPECT_EQ(ServiceNotifier::FromEnvironment().watchdog(), std::nullopt) << wrong;
  }
  for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC"}) unsetenv(name);
}

}  // namespace
}  // namespace ovq
