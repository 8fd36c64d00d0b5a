// Servers on one Redis: an engine lets go of what its store has lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>

#include "server/engine/sessions/session_texts.h"
#include "server/redis/redis_store.h"
#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/stepping_clock.h"
#include "tests/server/store/redis_process.h"
#include "tests/test_util.h"

namespace ovq::engine::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

class SharedRedis : public testing::Test {
 protected:
  struct Server {
    std::vector<std::string> told;  // engine thread
    std::unique_ptr<TestEngine> engine;
  };

  static constexpr absl::Duration kLease = absl::Seconds(1), kPatience = absl::Seconds(10);

  static EngineOptions WithClock(const std::shared_ptr<std::atomic<int64_t>>& ms) {
    EngineOptions options;
    options.clock = StandingClock(ms);
    return options;
  }
  void SetUp() override {
    if (access(store::test::kRedisServer, X_OK) != 0) {
      GTEST_SKIP() << "no " << store::test::kRedisServer;
    }
    redis_ = std::make_unique<store::test::RedisProcess>();
  }
  static std::unique_ptr<Server> Start(const redis::RedisAddress& address,
                                       absl::Duration lease = kLease,
                                       absl::Duration patience = kPatience,
                                       EngineOptions options = {}) {
    auto server = std::make_unique<Server>();
    absl::StatusOr<std::unique_ptr<redis::RedisStore>> store =
        redis::RedisStore::Open({.address = address,
                                 .lease = lease,
                                 .reply_timeout = absl::Milliseconds(300),
                                 .patience = patience,
                                 .ownership_timeout = absl::Seconds(5)});
    EXPECT_TRUE(store.ok()) << store.status();
    const absl::StatusOr<store::RecoveredSessions> found = (*store)->Recover();
    EXPECT_TRUE(found.ok()) << found.status();
    options.session_store = *std::move(store);
    EngineEvents events;
    events.session_event = [to = &server->told](const SessionReport& report) {
      to->push_back(report.event);
    };
    server->engine = std::make_unique<TestEngine>(options, FakeModelOptions{}, events);
    EXPECT_THAT((*server->engine)->sessions().Adopt(found->sessions), IsEmpty());
    return server;
  }

  std::unique_ptr<store::test::RedisProcess> redis_;
};

TEST_F(SharedRedis, ATurnOfALostSessionCountsNowhere) {
  store::test::RedisProxy proxy(redis_->address().port);
  const auto first = Start(proxy.address()), second = Start(redis_->address());
  SessionOptions options;
  options.prompt = SomeTokens(700, 3);
  options.slot_cap = 40;
  const std::string id = first->engine->NewSession(options).id;
  TestEngine calm;
  const std::string twin = calm.NewSession(options).id;
  const auto same = [&](TestEngine& engine, uint32_t seed) {
    const Answers there = engine.Run(Turn(id, SomeTokens(30, seed), 20, seed));
    const Answers here = calm.Run(Turn(twin, SomeTokens(30, seed), 20, seed));
    ASSERT_TRUE(there.status.ok()) << "turn " << seed << ": " << there.status;
    EXPECT_EQ(there.of[0].tokens, here.of[0].tokens);
  };
  same(*first->engine, 1);
  proxy.Freeze(true);
  auto late = std::async(std::launch::async, [&] {
    return first->engine->Run(Turn(id, SomeTokens(30, 9), 20, 9)).status;
  });
  same(*second->engine, 2);
  proxy.Freeze(false);
  const absl::Status status = late.get();
  EXPECT_THAT(status.message(), HasSubstr("another one has it now"));
  // Where an attempt of the write got no answer, the first server cannot know.
  EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(),
              HasSubstr(absl::IsDataLoss(status) ? "this call may have been stored before"
                                                 : "nothing of this call counts"));
  const EngineStats stats = first->engine->SettledStats();
  EXPECT_EQ(stats.sessions_idle + stats.sessions_hibernated, 0);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
  EXPECT_THAT(first->told, Contains("lost"));
  same(*first->engine, 3);
  same(*second->engine, 4);
}

// A server whose lease was over asks Redis before it says anything of a session.
TEST_F(SharedRedis, AServerThatMayHaveLostASessionAsksFirst) {
  store::test::RedisProxy proxy(redis_->address().port);
  const auto first = Start(proxy.address()), second = Start(redis_->address());
  SessionOptions options;
  options.prompt = SomeTokens(50, 3);
  const std::string id = first->engine->NewSession(options).id;
  EXPECT_TRUE((*first->engine)->sessions().Get(id, "")->durable);
  proxy.Freeze(true);
  ASSERT_TRUE(second->engine->Run(Turn(id, SomeTokens(30, 2), 20, 2)).status.ok());
  // Redis cannot be asked: the session is said as it was, and not to be stored.
  const absl::StatusOr<SessionInfo> old = (*first->engine)->sessions().Get(id, "");
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->position, 50);
  EXPECT_FALSE(old->durable);
  proxy.Freeze(false);
  const absl::StatusOr<SessionInfo> now = (*first->engine)->sessions().Get(id, "");
  ASSERT_TRUE(now.ok()) << now.status();
  EXPECT_EQ(now->position, 100);
  EXPECT_TRUE(now->durable);
}

// A turn that could not be stored is not lost when another server asks for its session later.
TEST_F(SharedRedis, AnotherServerGetsATurnThatWasStoredLate) {
  store::test::RedisProxy proxy(redis_->address().port);
  const auto first = Start(proxy.address(), absl::Minutes(1), absl::Seconds(1));
  const auto second = Start(redis_->address());
  SessionOptions options;
  options.prompt = SomeTokens(50, 3);
  const std::string id = first->engine->NewSession(options).id;
  proxy.Freeze(true);
  const absl::Status status = first->engine->Run(Turn(id, SomeTokens(30, 2), 20, 2)).status;
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("it goes on in memory"));
  proxy.Freeze(false);
  const absl::StatusOr<SessionInfo> there = (*second->engine)->sessions().Get(id, "");
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ(there->position, 100);
}

TEST_F(SharedRedis, ASwappedOutSessionThatWasOnlyForkedIsHandedOver) {
  const auto ms = std::make_shared<std::atomic<int64_t>>(0);
  const auto second = Start(redis_->address(), kLease, kPatience, WithClock(ms));
  EngineOptions tight = WithClock(ms);
  tight.overcommit = true;
  tight.state_memory_bytes = 2 * second->engine->model().layout().bytes_cap(kDefaultSlotCap);
  const auto first = Start(redis_->address(), kLease, kPatience, tight);
  SessionOptions options;
  options.prompt = SomeTokens(50, 3);
  options.ttl = absl::Seconds(4);
  const std::string id = first->engine->NewSession(options).id;
  *ms += 600;  // more than a tenth of its time to live
  std::promise<absl::Status> forked;
  (*first->engine)->sessions().Fork({.session_id = id}, [&](const auto& forks) {
    forked.set_value(forks.status());
  });
  ASSERT_EQ(forked.get_future().get(), absl::OkStatus());
  for (int i = 0; i < 2; ++i) {
    *ms += 1;  // so that these were used last
    (void)first->engine->NewSession({});
  }
  EXPECT_TRUE((*first->engine)->sessions().Get(id, "")->hibernated);
  const absl::StatusOr<SessionInfo> there = (*second->engine)->sessions().Get(id, "");
  EXPECT_TRUE(there.ok()) << there.status();
}

// Forks are uses that change nothing, of which the store hears only now and then.
TEST_F(SharedRedis, AnotherServerKnowsHowLongASessionLives) {
  const auto ms = std::make_shared<std::atomic<int64_t>>(0);
  const auto first = Start(redis_->address(), kLease, kPatience, WithClock(ms));
  const auto second = Start(redis_->address(), kLease, kPatience, WithClock(ms));
  SessionOptions options;
  options.prompt = SomeTokens(50, 3);
  options.ttl = absl::Seconds(2);
  const std::string id = first->engine->NewSession(options).id;
  for (int i = 0; i < 6; ++i) {
    *ms += 500;
    std::promise<absl::Status> forked;
    (*first->engine)->sessions().Fork({.session_id = id}, [&](const auto& forks) {
      forked.set_value(forks.status());
    });
    ASSERT_EQ(forked.get_future().get(), absl::OkStatus());
  }
  const absl::StatusOr<SessionInfo> there = (*second->engine)->sessions().Get(id, "");
  EXPECT_TRUE(there.ok()) << there.status();
}

TEST_F(SharedRedis, CallsThatComeTogetherGetTheSessionTogether) {
  const auto first = Start(redis_->address()), second = Start(redis_->address());
  const std::string id = first->engine->NewSession({}).id;
  std::vector<std::future<absl::Status>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::async(std::launch::async,
                               [&] { return (*second->engine)->sessions().Get(id, "").status(); }));
  }
  for (std::future<absl::Status>& call : calls) EXPECT_EQ(call.get(), absl::OkStatus());
}

TEST_F(SharedRedis, ATextThatRedisCannotBeAskedForIsNotTakenForAMissingOne) {
  absl::StatusOr<std::unique_ptr<redis::RedisStore>> store =
      redis::RedisStore::Open({.address = redis_->address(),
                               .reply_timeout = absl::Milliseconds(300),
                               .patience = absl::Milliseconds(300)});
  ASSERT_TRUE(store.ok()) << store.status();
  SessionTexts texts(size_t{1} << 20, store->get());
  SessionInfo info;
  info.id = "0123456789abcdef0123456789abcdef";
  texts.AddFound(info, 100);
  const auto get = [&] {
    std::promise<absl::StatusOr<SessionText>> text;
    texts.Get(
        info.id, [](size_t) { return absl::OkStatus(); },
        [&](absl::StatusOr<SessionText> got) { text.set_value(std::move(got)); });
    return text.get_future().get();
  };
  const absl::StatusOr<SessionText> missing = get();
  ASSERT_TRUE(missing.ok()) << missing.status();
  EXPECT_EQ(*missing, nullptr);
  redis_->Kill();
  const absl::Status status = get().status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST_F(SharedRedis, AnIdleSessionThatIsLostLeavesMemory) {
  store::test::RedisProxy proxy(redis_->address().port);
  const auto first = Start(proxy.address()), second = Start(redis_->address());
  SessionOptions options;
  options.prompt = SomeTokens(50, 3);
  const std::string id = first->engine->NewSession(options).id;
  proxy.Freeze(true);
  ASSERT_TRUE(second->engine->Run(Turn(id, SomeTokens(30, 2), 20, 2)).status.ok());
  proxy.Freeze(false);
  EngineStats stats = first->engine->SettledStats();
  for (int i = 0; i < 500 && stats.sessions_idle > 0; ++i) {
    absl::SleepFor(absl::Milliseconds(10));
    stats = first->engine->SettledStats();
  }
  EXPECT_EQ(stats.sessions_idle, 0);
  EXPECT_EQ(stats.state_bytes_reserved, 0u);
}

}  // namespace
}  // namespace ovq::engine::test
