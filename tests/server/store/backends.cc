#include "tests/server/store/backends.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "server/disk/session_folder.h"
#include "server/redis/redis_store.h"

namespace ovq::store::test {
namespace {

class FolderBackend final : public Backend {
 public:
  FolderBackend() : path_(testing::TempDir() + "/store" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~FolderBackend() override { std::filesystem::remove_all(path_); }

  std::unique_ptr<SessionStore> Open() override {
    return disk::SessionFolder::Open({.path = path_, .ownership_timeout = absl::Seconds(2)})
        .value();
  }
  void BreakAppends(const std::string& id, bool broken) override {
    const std::string journal = path_ + "/" + id + ".journal", away = path_ + "/away";
    std::filesystem::rename(broken ? journal : away, broken ? away : journal);
  }
  void ChangeBytes(const std::string& id, Part part, const Change& change) override {
    std::string path = path_ + "/" + id + (part == Part::kText ? ".text" : ".journal");
    for (const auto& file : std::filesystem::directory_iterator(path_)) {
      const std::string name = file.path().filename();
      if (part == Part::kSnapshot && name.starts_with(id + "-")) path = file.path();
    }
    std::string bytes = ReadFile(path, size_t{1} << 30).value();
    change(bytes);
    ASSERT_TRUE(WriteFile(path, bytes).ok());
  }

 private:
  const std::string path_;
};

// Returns a port of the loopback that nobody listens on.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(fd, any, size), 0);
  EXPECT_EQ(getsockname(fd, any, &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

constexpr char kRedisServer[] = "/usr/bin/redis-server";

// A redis-server of its own.
class RedisBackend final : public Backend {
 public:
  RedisBackend() : port_(FreePort()), folder_(absl::StrCat(testing::TempDir(), "/redis", port_)) {
    std::filesystem::create_directories(folder_);
    process_ = fork();
    if (process_ == 0) {
      const std::string port = absl::StrCat(port_);
      execl(kRedisServer, kRedisServer, "--port", port.c_str(), "--bind", "127.0.0.1", "--dir",
            folder_.c_str(), "--save", "", "--appendonly", "yes", "--appendfsync", "always",
            "--logfile", (folder_ + "/log").c_str(), nullptr);
      _exit(127);
    }
    connection_ = std::make_unique<redis::RedisConnection>(Address(), absl::Seconds(5));
    for (int i = 0; i < 500 && !connection_->Run(redis::Command{"PING"}).ok(); ++i) {
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  ~RedisBackend() override {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }

  std::unique_ptr<SessionStore> Open() override {
    return redis::RedisStore::Open(
               {.address = Address(), .ownership_timeout = absl::Milliseconds(300)})
        .value();
  }
  void BreakAppends(const std::string&, bool broken) override {
    Run({"CONFIG", "SET", "maxmemory", broken ? "1" : "0"});
  }
  void ChangeBytes(const std::string& id, Part part, const Change& change) override {
    std::string key = absl::StrCat(part == Part::kText ? "ovq:text:" : "ovq:journal:", id);
    if (part == Part::kSnapshot) {
      key = absl::StrCat(Run({"HGET", absl::StrCat("ovq:session:", id), "parts"}).text, ":1");
    }
    std::string bytes = Run({"GET", key}).text;
    change(bytes);
    Run({"SET", key, bytes});
  }

 private:
  redis::RedisAddress Address() const { return {.host = "127.0.0.1", .port = port_}; }
  redis::Reply Run(redis::Command command) {
    absl::StatusOr<redis::Reply> reply = connection_->Run(std::move(command));
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *std::move(reply) : redis::Reply();
  }

  const int port_;
  const std::string folder_;
  pid_t process_ = 0;
  std::unique_ptr<redis::RedisConnection> connection_;
};

}  // namespace

std::vector<BackendCase> Backends() {
  return {{"folder",
           [] {
             return std::pair<std::unique_ptr<Backend>, std::string>(
                 std::make_unique<FolderBackend>(), "");
           }},
          {"redis", [] {
             if (access(kRedisServer, X_OK) != 0) {
               return std::pair<std::unique_ptr<Backend>, std::string>(
                   nullptr, absl::StrCat("no ", kRedisServer));
             }
             return std::pair<std::unique_ptr<Backend>, std::string>(
                 std::make_unique<RedisBackend>(), "");
           }}};
}

}  // namespace ovq::store::test
