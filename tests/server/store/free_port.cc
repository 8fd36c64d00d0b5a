#include "tests/server/store/free_port.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace ovq::store::test {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

namespace {

bool IsFree(int port) {
  const sockaddr_in address = Loopback(port);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

// Claims the port by an abstract name of a socket (unix(7)), which stays open until this process
// ends: a port itself cannot be held while a server listens there.
bool Claim(int port) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = absl::StrCat("ovq-test-port-", port);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  close(fd);
  return false;
}

}  // namespace

int FreePort() {
  constexpr int kLowest = 10240;
  int first_outgoing = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first_outgoing;
  std::uniform_int_distribution<int> some(kLowest, std::max(first_outgoing, 2 * kLowest) - 1);
  std::random_device random;
  int port = 0;
  do {
    port = some(random);
  } while (!IsFree(port) || !Claim(port));
  return port;
}

}  // namespace ovq::store::test
