// HostTime: what clients owe for the host's work.
#include "server/engine/common/host_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/machine.h"

namespace ovq::engine {
namespace {

double SecondsOwed(const HostTime& time, const std::string& client) {
  for (const HostDebt& debt : time.debts()) {
    if (debt.client == client) return debt.seconds;
  }
  return 0;
}

TEST(HostTime, ClientsOweNoMoreThanTheEngineWaited) {
  HostTime time;
  time.Charge("a", absl::Milliseconds(30));
  time.Charge("b", absl::Milliseconds(10));
  time.Settle(absl::Milliseconds(20));
  EXPECT_NEAR(SecondsOwed(time, "a"), 0.015, 1e-6);
  EXPECT_NEAR(SecondsOwed(time, "b"), 0.005, 1e-6);
  time.Settle(absl::Milliseconds(20));
  EXPECT_NEAR(SecondsOwed(time, "a"), 0.015, 1e-6) << "nothing was used meanwhile";
  EXPECT_EQ(time.stats().used, absl::Milliseconds(40));
  EXPECT_NEAR(absl::ToDoubleSeconds(time.stats().owed), 0.02, 1e-6);
}

TEST(HostTime, ClientsOweNoMoreThanTheyUsed) {
  HostTime time;
  time.Charge("a", absl::Milliseconds(3));
  time.Settle(absl::Seconds(1));
  EXPECT_NEAR(SecondsOwed(time, "a"), 0.003, 1e-6);
  time.Charge("a", absl::Milliseconds(3));
  time.Settle(std::nullopt);
  EXPECT_NEAR(SecondsOwed(time, "a"), 0.006, 1e-6) << "nothing is known of the engine";
}

TEST(HostTime, WorkOnIdleProcessorsCostsNothing) {
  HostTime time;
  time.Charge("a", absl::Seconds(3));
  time.Settle(absl::ZeroDuration());
  EXPECT_TRUE(time.debts().empty());
  EXPECT_TRUE(time.MayBegin("a"));
}

TEST(HostTime, DebtsAreBoundedPaidAndForgiven) {
  HostTime time;
  time.Charge("a", absl::Seconds(100));
  time.Charge("b", absl::Milliseconds(1));
  time.Settle(std::nullopt);
  EXPECT_NEAR(SecondsOwed(time, "a"), absl::ToDoubleSeconds(HostTime::kMostOwed), 1e-6);
  EXPECT_FALSE(time.MayBegin("a"));
  EXPECT_TRUE(time.MayBegin("b")) << "it owes little";
  time.Pay({{.client = "a", .paid = 0.1}, {.client = "b", .paid = 0.001}, {.client = "unknown"}});
  EXPECT_NEAR(SecondsOwed(time, "a"), absl::ToDoubleSeconds(HostTime::kMostOwed) - 0.1, 1e-6);
  EXPECT_EQ(time.debts().size(), 1u);
  time.Forgive();
  EXPECT_TRUE(time.MayBegin("a"));
}

TEST(HostTime, NothingIsKeptOfClientsWhileTheEngineSleeps) {
  HostTime time;
  time.Forgive();
  time.Charge("a", absl::Seconds(1));
  time.Settle(std::nullopt);
  EXPECT_TRUE(time.debts().empty());
  EXPECT_EQ(time.stats().used, absl::Seconds(1));
  time.Charge("a", absl::Milliseconds(1));
  time.Settle(std::nullopt);
  EXPECT_EQ(time.debts().size(), 1u);
}

void UseThread(absl::Duration duration) {
  const absl::Duration begin = ThreadTime();
  while (ThreadTime() - begin < duration) {
  }
}

TEST(HostMeter, MetersWithinHaveTheirOwnTime) {
  HostTime time;
  {
    const HostMeter outer(time, "outer");
    UseThread(absl::Milliseconds(2));
    const HostMeter inner(time, "inner");
    UseThread(absl::Milliseconds(20));
  }
  time.Settle(std::nullopt);
  EXPECT_GE(SecondsOwed(time, "inner"), 0.02);
  EXPECT_GE(SecondsOwed(time, "outer"), 0.002);
  EXPECT_LT(SecondsOwed(time, "outer"), 0.02);
}

TEST(HostMeter, MetersOfOneClientWithinEachOtherChargeOnce) {
  HostTime time;
  const absl::Duration begin = ThreadTime();
  {
    const HostMeter outer(time, "a");
    const HostMeter inner(time, "a");
    const HostMeter other(time, "b");
    UseThread(absl::Milliseconds(5));
    const HostMeter within(time, "a");
    UseThread(absl::Milliseconds(5));
  }
  const absl::Duration used = ThreadTime() - begin;
  EXPECT_GE(time.stats().used, absl::Milliseconds(10));
  EXPECT_LE(time.stats().used, used);
  time.Settle(std::nullopt);
  EXPECT_GE(SecondsOwed(time, "a"), 0.005);
  EXPECT_GE(SecondsOwed(time, "b"), 0.005);
}

// A call of seconds owes what the engine waits for it while it runs, not at its end alone.
TEST(HostMeter, WhatIsMeasuredSoFarIsOwedBeforeItsEnd) {
  HostTime time;
  std::promise<void> used, seen;
  std::thread call([&] {
    const HostMeter meter(time, "long");
    UseThread(absl::Milliseconds(20));
    used.set_value();
    seen.get_future().wait();
    UseThread(absl::Milliseconds(10));
  });
  used.get_future().wait();
  time.Settle(absl::Milliseconds(15));
  EXPECT_NEAR(SecondsOwed(time, "long"), 0.015, 1e-6);
  EXPECT_FALSE(time.MayBegin("long"));
  seen.set_value();
  call.join();
  time.Settle(std::nullopt);
  EXPECT_GE(SecondsOwed(time, "long"), 0.025) << "the rest, once";
  EXPECT_LT(SecondsOwed(time, "long"), 0.04);
}

TEST(HostMeter, WaitingIsNotCharged) {
  HostTime time;
  {
    const HostMeter meter(time, "sleeper");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  time.Settle(std::nullopt);
  EXPECT_LT(SecondsOwed(time, "sleeper"), 0.02);
}

}  // namespace
}  // namespace ovq::engine
