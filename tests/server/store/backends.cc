#include "tests/server/store/backends.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "server/disk/session_folder.h"
#include "server/redis/redis_store.h"
#include "tests/server/store/redis_process.h"

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
  void LoseAcknowledgements(int) override {}  // they are calls within the process
  void JumpClock(absl::Duration time) override {
    const auto jump = std::chrono::duration_cast<std::filesystem::file_time_type::duration>(
        absl::ToChronoNanoseconds(time));
    for (const auto& file : std::filesystem::recursive_directory_iterator(path_)) {
      std::filesystem::last_write_time(file.path(),
                                       std::filesystem::last_write_time(file.path()) - jump);
    }
  }

 private:
  const std::string path_;
};

class RedisBackend final : public Backend {
 public:
  RedisBackend() : proxy_(redis_.address().port) {}

  std::unique_ptr<SessionStore> Open() override {
    return redis::RedisStore::Open({.address = proxy_.address(),
                                    .lease = absl::Seconds(30),
                                    .ownership_timeout = absl::Milliseconds(300)})
        .value();
  }
  void BreakAppends(const std::string&, bool broken) override {
    redis_.Run({"CONFIG", "SET", "maxmemory", broken ? "1" : "0"});
  }
  void ChangeBytes(const std::string& id, Part part, const Change& change) override {
    std::string key = absl::StrCat(part == Part::kText ? "ovq:text:" : "ovq:journal:", id);
    if (part == Part::kSnapshot) {
      key =
          absl::StrCat(redis_.Run({"HGET", absl::StrCat("ovq:session:", id), "parts"}).text, ":1");
    }
    std::string bytes = redis_.Run({"GET", key}).text;
    change(bytes);
    redis_.Run({"SET", key, bytes});
  }
  void LoseAcknowledgements(int count) override { proxy_.LoseAnswers("ovq:session:", count); }
  // Times are those at which keys end.
  void JumpClock(absl::Duration time) override {
    for (const redis::Reply& key : redis_.Run({"KEYS", "*"}).items) {
      const int64_t left = redis_.Run({"PTTL", key.text}).number;
      if (left < 0) continue;
      const int64_t then = left - absl::ToInt64Milliseconds(time);
      redis_.Run({"PEXPIRE", key.text, absl::StrCat(then)});
    }
  }

 private:
  RedisProcess redis_;
  RedisProxy proxy_;
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
