#include "tests/server/store/backends.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "server/disk/session_folder.h"
#include "server/redis/redis_store.h"
#include "server/s3/s3_store.h"
#include "tests/server/store/redis_process.h"
#include "tests/server/store/s3_process.h"

namespace ovq::store::test {
namespace {

class FolderBackend final : public Backend {
 public:
  FolderBackend() : path_(testing::TempDir() + "/store" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~FolderBackend() override { std::filesystem::remove_all(path_); }

  std::unique_ptr<SessionStore> Open(absl::Duration ownership_timeout) override {
    return disk::SessionFolder::Open({.path = path_, .ownership_timeout = ownership_timeout})
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

  std::unique_ptr<SessionStore> Open(absl::Duration ownership_timeout) override {
    return redis::RedisStore::Open({.address = proxy_.address(),
                                    .lease = absl::Seconds(30),
                                    .ownership_timeout = ownership_timeout})
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

class S3Backend final : public Backend {
 public:
  std::unique_ptr<SessionStore> Open(absl::Duration ownership_timeout) override {
    return s3::S3Store::Open({.address = server_.address(),
                              .credentials = S3Process::credentials(),
                              .lease = absl::Seconds(30),
                              .ownership_timeout = ownership_timeout,
                              .listen_interval = absl::Milliseconds(20)})
        .value();
  }
  void BreakAppends(const std::string&, bool broken) override {
    server_.Control(absl::StrCat("status=403&method=PUT&word=session/&count=", broken ? -1 : 0));
  }
  void ChangeBytes(const std::string& id, Part part, const Change& change) override {
    std::string key = s3::SessionKey(id);
    if (part != Part::kJournal) {
      const s3::SessionObject object =
          s3::ReadSessionObject(server_.client(), id, kNever).value().object;
      key =
          part == Part::kText ? s3::DataKey(id, object.text) : s3::SnapshotKeys(id, object).front();
    }
    std::string bytes = server_.client().GetObject(key, kNever).value().bytes;
    change(bytes);
    ASSERT_TRUE(server_.client().PutObject(key, bytes, {}, kNever).ok());
  }
  void LoseAcknowledgements(int count) override {
    server_.Control(absl::StrCat("word=session/&lose=", count));
  }
  void JumpClock(absl::Duration time) override {
    server_.Control(absl::StrCat("jump=", absl::ToInt64Seconds(time)));
  }

 private:
  S3Process server_{{"--page", "3"}};
};

template <class Made>
BackendCase CaseThatNeeds(const std::string& name, const char* program) {
  return {name, [program] {
            std::pair<std::unique_ptr<Backend>, std::string> result;
            if (access(program, X_OK) != 0) {
              result.second = absl::StrCat("no ", program);
            } else {
              result.first = std::make_unique<Made>();
            }
            return result;
          }};
}

}  // namespace

std::vector<BackendCase> Backends() {
  return {{"folder",
           [] {
             return std::pair<std::unique_ptr<Backend>, std::string>(
                 std::make_unique<FolderBackend>(), "");
           }},
          CaseThatNeeds<RedisBackend>("redis", kRedisServer),
          CaseThatNeeds<S3Backend>("s3", kPython)};
}

}  // namespace ovq::store::test
