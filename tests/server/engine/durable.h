// A session folder for tests, and engines on it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/clock.h"
#include "server/disk/session_folder.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {

// Runs engines on a folder of the test's own, one after another.
class Durable : public testing::Test {
 protected:
  Durable() : path_(testing::TempDir() + "/durable" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~Durable() override {
    Stop();
    std::filesystem::remove_all(path_);
  }

  // Ends the server and its writes.
  void Stop() {
    if (engine_ == nullptr) return;
    engine_.reset();
    for (const std::string& id : gone_) EXPECT_EQ(SessionFile(id, ""), "");
  }
  // Starts a server on the folder as it was left.
  void Start(EngineOptions options = {}, const FakeModelOptions& model = {}) {
    Stop();
    const auto count = [this](const store::StoreReport& report) {
      if (report.kind == std::string_view("snapshot")) ++snapshots_;
    };
    absl::StatusOr<std::unique_ptr<disk::SessionFolder>> folder =
        disk::SessionFolder::Open({.path = path_}, count);
    ASSERT_TRUE(folder.ok()) << folder.status();
    absl::StatusOr<store::RecoveredSessions> found = (*folder)->Recover();
    ASSERT_TRUE(found.ok()) << found.status();
    damaged_ = found->damaged;
    options.session_store = *std::move(folder);
    EngineEvents events;
    events.session_event = [this](const SessionReport& report) {
      // State() exports, which is told beside what the test does next.
      if (report.event == std::string_view("export")) return;
      told_.push_back(report.event);
      replayed_ += report.replayed;
    };
    told_.clear();
    replayed_ = 0;
    engine_ = std::make_unique<TestEngine>(options, model, events);
    left_ = engine()->sessions().Adopt(std::move(found->sessions));
  }
  // Starts a server on a copy of the files at one moment while the engine still runs, as a kill
  // would leave them.
  void Kill() {
    const std::string copy = path_ + "-copy";
    const auto files = [this] {
      std::map<std::string, uintmax_t> sizes;
      std::error_code gone;
      for (const auto& entry : std::filesystem::directory_iterator(path_)) {
        sizes[entry.path()] = entry.is_directory() ? 0 : entry.file_size(gone);
      }
      return sizes;
    };
    std::error_code error;
    std::map<std::string, uintmax_t> before;
    do {  // no file came or went meanwhile
      std::filesystem::remove_all(copy);
      before = files();
      std::filesystem::copy(path_, copy, std::filesystem::copy_options::recursive, error);
    } while (error || files() != before);
    Stop();
    std::filesystem::remove_all(path_);
    std::filesystem::rename(copy, path_);
    Start();
  }
  TestEngine& engine() { return *engine_; }
  std::string SessionFile(const std::string& id, const std::string& end) {
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      const std::string name = entry.path().filename();
      if (name.starts_with(id) && name.ends_with(end)) return entry.path();
    }
    return "";
  }
  // Waits until the session has no files. A snapshot that begins to be written just before its
  // session is deleted appears once more and goes again, so Stop() looks for the files as well.
  void ExpectNoFiles(const std::string& id) {
    bool gone = false;
    for (int i = 0; i < 10'000 && !gone; ++i) {
      gone = SessionFile(id, "").empty();
      if (!gone) absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(gone) << SessionFile(id, "");
    gone_.push_back(id);
  }
  SessionInfo Info(const std::string& id) {
    const absl::StatusOr<SessionInfo> info = engine()->sessions().Get(id, "");
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? *info : SessionInfo{};
  }
  std::string Text(const std::string& id) {
    const auto text = engine()->sessions().GetText(id, "", [](size_t) { return absl::OkStatus(); });
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() && *text != nullptr ? **text : "none";
  }
  std::string Open(int64_t n_prompt, bool keep_tokens = true) {
    SessionOptions options;
    options.prompt = SomeTokens(n_prompt, 3);
    options.slot_cap = 40;
    options.keep_tokens = keep_tokens;
    return engine().NewSession(options).id;
  }

  const std::string path_;
  std::vector<std::string> damaged_, left_, told_;
  std::vector<std::string> gone_;  // ids of sessions without files
  int64_t replayed_ = 0;
  std::atomic<int> snapshots_ = 0;  // finished by the disk
  std::unique_ptr<TestEngine> engine_;
};

}  // namespace ovq::engine::test
