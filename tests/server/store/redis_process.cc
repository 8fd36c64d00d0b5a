#include "tests/server/store/redis_process.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/server/store/free_port.h"

namespace ovq::store::test {
namespace {

bool SendWhole(int fd, const char* bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

RedisProcess::RedisProcess(std::vector<std::string> flags)
    : port_(FreePort()),
      folder_(absl::StrCat(testing::TempDir(), "/redis", port_)),
      flags_(std::move(flags)) {
  std::filesystem::create_directories(folder_);
  Start();
}

RedisProcess::~RedisProcess() {
  Kill();
  // A child of the killed server can still be making a file when the folder is listed.
  std::error_code error;
  for (int i = 0; i < 500; ++i) {
    std::filesystem::remove_all(folder_, error);
    if (!error) return;
    absl::SleepFor(absl::Milliseconds(10));
  }
  ADD_FAILURE() << folder_ << ": " << error.message();
}

void RedisProcess::Start() {
  std::vector<std::string> words = {kRedisServer,   "--port",    absl::StrCat(port_),
                                    "--bind",       "127.0.0.1", "--dir",
                                    folder_,        "--save",    "",
                                    "--appendonly", "yes",       "--appendfsync",
                                    "always",       "--logfile", folder_ + "/log"};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  process_ = fork();
  if (process_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execv(kRedisServer, pointers.data());
    _exit(127);
  }
  setpgid(process_, process_);
  connection_ = std::make_unique<redis::RedisConnection>(address(), absl::Seconds(10));
  for (int i = 0; i < 1000 && !connection_->RunTogether({{"PING"}})[0].ok(); ++i) {
    absl::SleepFor(absl::Milliseconds(10));
  }
}

void RedisProcess::Signal(int signal) { kill(process_, signal); }

// Redis has children that write a whole copy of what it holds: they are of its group.
void RedisProcess::Kill() {
  if (process_ == 0) return;
  kill(-process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = 0;
}

redis::Reply RedisProcess::Run(redis::Command command) {
  absl::StatusOr<redis::Reply> reply = std::move(connection_->RunTogether({std::move(command)})[0]);
  EXPECT_TRUE(reply.ok()) << reply.status();
  return reply.ok() ? *std::move(reply) : redis::Reply();
}

RedisProxy::RedisProxy(int to_port) : to_port_(to_port), port_(FreePort()) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port_);
  EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(listener_, 64), 0);
  thread_ = std::thread([this] { Serve(); });
}

RedisProxy::~RedisProxy() {
  ending_ = true;
  thread_.join();
  for (std::thread& connection : connections_) connection.join();
  close(listener_);
}

void RedisProxy::LoseAnswers(const std::string& word, int count) {
  EXPECT_EQ(to_lose_, 0) << "answers that were to be lost never came";
  word_ = word;
  to_lose_ = count;
}

void RedisProxy::HoldAnswer(const std::string& word) {
  EXPECT_EQ(to_hold_, 0) << "an answer that was to be held never came";
  word_ = word;
  to_hold_ = 1;
}

void RedisProxy::Serve() {
  while (!ending_) {
    pollfd wait = {listener_, POLLIN, 0};
    if (poll(&wait, 1, 20) <= 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) connections_.emplace_back([this, client] { Pass(client); });
  }
}

// Passes on what comes from either side. It cuts the connection instead of passing on the answer
// to a request that has the word.
void RedisProxy::Pass(int client) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(to_port_);
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  const int on = 1;
  for (const int fd : {client, server}) {
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  std::vector<char> buffer(size_t{1} << 16);
  std::string request;
  bool lose = false, hold = false;
  while (open && !ending_) {
    std::array<pollfd, 2> wait = {{{client, POLLIN, 0}, {server, POLLIN, 0}}};
    if (frozen_) absl::SleepFor(absl::Milliseconds(5));
    if (frozen_ || poll(wait.data(), wait.size(), 20) <= 0 || frozen_) continue;
    for (const auto& [from, to] : {std::pair(client, server), std::pair(server, client)}) {
      const ssize_t n = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) continue;
      open = open && n > 0;
      if (!open) break;
      const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
      if (from == client) {
        request += bytes;
        if (to_lose_ > 0 && request.find(word_) != std::string::npos) lose = true;
        if (to_hold_ > 0 && request.find(word_) != std::string::npos) hold = true;
      } else {
        request.clear();
        if (hold) {
          hold = false;
          holds_ = true;
          --to_hold_;
          while (holds_ && !ending_) absl::SleepFor(absl::Milliseconds(5));
        }
        if (lose) {
          if (to_lose_ > 0) --to_lose_;
          open = false;
          break;
        }
      }
      open = SendWhole(to, bytes.data(), bytes.size());
    }
  }
  close(server);
  close(client);
}

}  // namespace ovq::store::test
