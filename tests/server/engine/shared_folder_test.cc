// Servers on one session folder: a session is on the server that was last asked for it, equal to
// the byte, and nowhere else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "absl/time/clock.h"
#include "server/disk/session_folder.h"
#include "tests/server/engine/delegating_store.h"
#include "tests/server/engine/fake_model.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SharedFolder : public testing::Test {
 protected:
  struct Server {
    std::vector<std::string> told;  // engine thread
    store::RecoveredSessions found;
    std::unique_ptr<TestEngine> engine;

    TestEngine& operator*() { return *engine; }
    Engine* operator->() { return engine->operator->(); }
  };

  SharedFolder() : path_(testing::TempDir() + "/shared" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~SharedFolder() override { std::filesystem::remove_all(path_); }

  std::unique_ptr<disk::SessionFolder> OpenFolder(store::RecoveredSessions& found,
                                                  disk::SessionFolderOptions options = {}) {
    options.path = path_;
    absl::StatusOr<std::unique_ptr<disk::SessionFolder>> folder =
        disk::SessionFolder::Open(options);
    EXPECT_TRUE(folder.ok()) << folder.status();
    absl::StatusOr<store::RecoveredSessions> here = (*folder)->Recover();
    EXPECT_TRUE(here.ok()) << here.status();
    found = *std::move(here);
    return *std::move(folder);
  }
  std::unique_ptr<Server> Start(EngineOptions options = {}, disk::SessionFolderOptions disk = {}) {
    auto server = std::make_unique<Server>();
    options.session_store = OpenFolder(server->found, disk);
    EngineEvents events;
    events.session_event = [to = &server->told](const SessionReport& report) {
      // State() exports, which is told beside what the test does next.
      if (report.event != std::string_view("export")) to->push_back(report.event);
    };
    server->engine = std::make_unique<TestEngine>(options, FakeModelOptions{}, events);
    EXPECT_THAT((*server)->sessions().Adopt(server->found.sessions), IsEmpty());
    return server;
  }
  static std::string Open(Server& server, const std::string& tenant = "") {
    SessionOptions options;
    options.prompt = SomeTokens(700, 3);
    options.slot_cap = 40;
    options.tenant = tenant;
    return (*server).NewSession(options).id;
  }
  static int64_t PositionOn(Server& server, const std::string& id) {
    const absl::StatusOr<SessionInfo> info = server->sessions().Get(id, "");
    EXPECT_TRUE(info.ok()) << info.status();
    return info.ok() ? info->position : -1;
  }

  const std::string path_;
};

TEST_F(SharedFolder, ATextComesWithItsSession) {
  const auto first = Start(), second = Start();
  const std::string id = Open(*first, "t");
  const auto reserve = [](size_t) { return absl::OkStatus(); };
  EXPECT_TRUE((*first)->sessions().PutText(id, "t", "text").ok());
  EXPECT_TRUE(absl::IsNotFound((*second)->sessions().GetText(id, "other", reserve).status()));
  for (const auto& server : {second.get(), first.get()}) {
    const absl::StatusOr<SessionText> text = (*server)->sessions().GetText(id, "t", reserve);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(**text, "text");
  }
}

// The caller's thread may be one that must not wait, whether the session is here or has just left.
TEST_F(SharedFolder, GetNeverWaits) {
  const auto owner = Start();
  const std::string id = Open(*owner);
  FakeModel model;
  EngineOptions options;
  store::RecoveredSessions found;
  options.session_store = OpenFolder(found);
  Engine engine({model.Make(), options, {}},
                kernels::test::MakeContext(kernels::Device::kCpu));  // has no thread
  Receiver<absl::StatusOr<SessionInfo>> there, here;
  engine.sessions().Get(id, "", there.callback());
  EXPECT_FALSE(there.has_value());
  while (!there.has_value()) engine.RunIteration();
  EXPECT_EQ(there.Wait()->position, 700);
  engine.sessions().Get(id, "", here.callback());
  EXPECT_TRUE(here.has_value()) << "it is here now";
}

TEST_F(SharedFolder, OwnershipMovesToTheServerThatRequestsIt) {
  const auto first = Start(), second = Start();
  const std::string id = Open(*first);
  TestEngine calm;
  SessionOptions options;
  options.prompt = SomeTokens(700, 3);
  options.slot_cap = 40;
  const std::string twin = calm.NewSession(options).id;
  for (uint32_t k = 0; k < 6; ++k) {
    Server& server = k % 2 == 0 ? *second : *first;
    const GenerateRequest turn = Turn(id, SomeTokens(30, k), 40, k + 1);
    GenerateRequest same = turn;
    same.session_id = twin;
    const Answers there = (*server).Run(turn), here = calm.Run(same);
    ASSERT_TRUE(there.status.ok()) << there.status;
    EXPECT_EQ(there.of[0].tokens, here.of[0].tokens);
    EXPECT_EQ(State(*server, id), State(calm, twin));
  }
  // A server that does not own the session does not count it.
  EXPECT_EQ((**second).SettledStats().sessions_hibernated, 0);
  EXPECT_EQ((**second).SettledStats().sessions_idle, 0);
  EXPECT_EQ((**second).SettledStats().state_bytes_reserved, 0u);
  EXPECT_EQ(second->told,
            (std::vector<std::string>{"take_over", "wake", "let_go", "take_over", "wake", "let_go",
                                      "take_over", "wake", "let_go"}));
}

TEST_F(SharedFolder, EveryCallBringsItsSession) {
  const auto first = Start(), second = Start();
  const std::string id = Open(*first);
  EXPECT_EQ(PositionOn(*second, id), 700);
  Receiver<absl::StatusOr<std::vector<SessionInfo>>> forks;
  (*first)->sessions().Fork({.session_id = id}, forks.callback());
  ASSERT_TRUE(forks.Wait().ok()) << forks.Wait().status();
  const std::string copy = forks.Wait()->front().id;
  Receiver<absl::StatusOr<RewindResult>> rewound;
  (*second)->sessions().Rewind({.session_id = copy, .position = 600}, nullptr, rewound.callback());
  ASSERT_TRUE(rewound.Wait().ok()) << rewound.Wait().status();
  EXPECT_EQ((*first)->sessions().Export(copy, "")->length(), 600);
  EXPECT_TRUE((*second)->sessions().Delete(copy, "").ok());
  EXPECT_TRUE(absl::IsNotFound((*first)->sessions().Get(copy, "").status()));
  EXPECT_EQ(PositionOn(*second, id), 700);
}

TEST_F(SharedFolder, OneThatIsInUseStays) {
  const auto first = Start(), second = Start();
  const std::string id = Open(*first);
  const auto stream = (**first).Start(Turn(id, {}, 100'000), 8);  // it waits for its reader
  ASSERT_TRUE(Pop(*stream));
  const Answers there = (**second).Run(Turn(id, {}, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(there.status)) << there.status;
  EXPECT_EQ(std::string(there.status.message()), "session " + id + ": in use by another call");
  EXPECT_TRUE(absl::IsFailedPrecondition((*second)->sessions().Get(id, "").status()));
  stream->cancel_signal().Cancel();
  ReadAll(*stream);
  EXPECT_TRUE((**second).Run(Turn(id, {}, 1)).status.ok());
}

TEST_F(SharedFolder, AFreeSessionIsAcquiredAtOnce) {
  auto first = Start();
  const std::string id = Open(*first), other = Open(*first);
  const auto second = Start();
  EXPECT_THAT(second->found.sessions, IsEmpty());
  EXPECT_EQ(second->found.elsewhere, 2u);
  const std::vector<std::byte> state = State(**first, id);
  first.reset();
  EXPECT_EQ(State(**second, id), state);
  const auto third = Start();
  EXPECT_EQ(third->found.sessions.size(), 1u);  // the other one
  EXPECT_EQ(third->found.elsewhere, 1u);
  EXPECT_EQ(PositionOn(*third, other), 700);
}

TEST_F(SharedFolder, AServerThatDoesNotAnswerKeepsItsSessions) {
  std::string id;
  {
    const auto first = Start();
    id = Open(*first);
  }
  store::RecoveredSessions found;
  const auto silent = OpenFolder(found);
  ASSERT_EQ(found.sessions.size(), 1u);
  const auto second = Start({}, {.ownership_timeout = absl::Milliseconds(300)});
  const absl::Time begin = absl::Now();
  const absl::Status status = (*second)->sessions().Get(id, "").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(id + ": another server has it"));
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(300));
  EXPECT_TRUE(std::filesystem::is_empty(path_ + "/asked"));
  silent->Release(id);
  EXPECT_EQ(PositionOn(*second, id), 700);
}

// Counts what an engine has told by the time at which it first releases a session.
class WatchedStore final : public DelegatingStore {
 public:
  WatchedStore(std::unique_ptr<store::SessionStore> store, const std::atomic<int>& told)
      : DelegatingStore(std::move(store)), told_(told) {}
  void Release(const std::string& id) override {
    int none = -1;
    told_before_.compare_exchange_strong(none, told_);
    DelegatingStore::Release(id);
  }
  int told_before() const { return told_before_; }

 private:
  const std::atomic<int>& told_;
  std::atomic<int> told_before_ = -1;
};

// Whoever has the session finds it in the other server's figures.
TEST_F(SharedFolder, AServerTellsThatItLetsASessionGoBeforeAnotherOneHasIt) {
  std::atomic<int> told = 0;
  store::RecoveredSessions none;
  const auto store = std::make_shared<WatchedStore>(OpenFolder(none), told);
  EngineOptions options;
  options.session_store = store;
  EngineEvents events;
  events.session_event = [&told](const SessionReport& report) {
    told += report.event == std::string_view("let_go") ? 1 : 0;
  };
  TestEngine first(options, {}, events);
  const std::string id = first.NewSession().id;
  const auto second = Start();
  EXPECT_EQ(PositionOn(*second, id), 0);
  EXPECT_EQ(store->told_before(), 1);
}

TEST_F(SharedFolder, OthersSessionsAreNotFoundThere) {
  const auto first = Start(), second = Start();
  const std::string id = Open(*first, "anna");
  EXPECT_TRUE(absl::IsNotFound((*second)->sessions().Get(id, "bob").status()));
  EXPECT_EQ((*second)->sessions().Get(id, "bob").status().message(),
            absl::NotFoundError("session " + id + ": not found").message());
  EXPECT_TRUE((*second)->sessions().Get(id, "anna").ok());
  EXPECT_TRUE((*first)->sessions().Get(id, "anna").ok());
}

TEST_F(SharedFolder, WhatHasExpiredIsNotFoundAnywhere) {
  SessionOptions options;
  options.prompt = SomeTokens(5, 3);
  options.ttl = absl::Milliseconds(50);
  std::string id;
  {
    const auto first = Start();
    id = (**first).NewSession(options).id;
    options.ttl = absl::Hours(1);
  }
  const auto second = Start();  // acquires it
  absl::SleepFor(absl::Milliseconds(60));
  const auto third = Start();
  EXPECT_TRUE(absl::IsNotFound((*third)->sessions().Get(id, "").status()));
}

TEST_F(SharedFolder, AStartRemovesWhatACrashLeftAndNothingElse) {
  const auto first = Start();
  const std::string id = Open(*first), nobody(32, 'a');
  const auto touch = [&](const std::string& name) { std::ofstream(path_ + "/" + name) << "x"; };
  // A file of a session that another server is writing, and two of no session.
  touch(id + "-77.session.part");
  touch("key-1." + nobody + "-3.session");
  touch(nobody + ".journal.part");
  const auto second = Start();
  EXPECT_TRUE(std::filesystem::exists(path_ + "/" + id + "-77.session.part"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/key-1." + nobody + "-3.session"));
  EXPECT_FALSE(std::filesystem::exists(path_ + "/" + nobody + ".journal.part"));
  EXPECT_EQ(PositionOn(*first, id), 700);
}

TEST_F(SharedFolder, ADamagedSessionIsQuarantinedByItsAcquirer) {
  std::string id;
  const auto second = Start();
  {
    const auto first = Start();
    id = Open(*first);
  }
  std::filesystem::resize_file(path_ + "/" + id + ".journal", 20);
  EXPECT_TRUE(absl::IsDataLoss((*second)->sessions().Get(id, "").status()));
  EXPECT_TRUE(std::filesystem::exists(path_ + "/damaged/" + id + ".journal"));
  EXPECT_TRUE(absl::IsNotFound((*second)->sessions().Get(id, "").status()));
}

// Turns of several sessions through either server at random, two callers at a time: each turn runs
// once, whichever server gets it.
TEST_F(SharedFolder, TurnsMayComeToEither) {
  constexpr int kCallers = 4, kTurns = 40;
  const std::unique_ptr<Server> servers[] = {Start(), Start()};
  std::vector<std::thread> callers;
  std::atomic<int> done = 0;
  for (uint32_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      std::mt19937 random(caller);
      const std::string id = Open(*servers[caller % 2]);
      int64_t position = 700;
      for (int k = 0; k < kTurns; ++k) {
        const Answers answer = (**servers[random() % 2]).Run(Turn(id, SomeTokens(3, caller), 4));
        position += 7;
        ASSERT_TRUE(answer.status.ok()) << answer.status;
        ASSERT_EQ(answer.of[0].finished->usage.position, position);
        ++done;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, kCallers * kTurns);
}

}  // namespace
}  // namespace ovq::engine::test
