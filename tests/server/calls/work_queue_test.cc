#include "server/calls/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/machine.h"
#include "server/engine/common/engine_api.h"

namespace ovq::server::test {
namespace {

using testing::ElementsAre;

engine::HostTime host_time;

TEST(WorkQueue, ClientsAreInTurnAndEachInItsOwnOrder) {
  std::mutex mutex;
  std::vector<std::string> done;
  {
    std::promise<void> running, go;
    WorkQueue queue(host_time, 1);
    queue.Run("first", [&running, gate = go.get_future().share()] {
      running.set_value();
      gate.wait();
    });
    running.get_future().wait();  // the thread is busy, so what follows is queued
    for (const char* name : {"a1", "a2", "a3", "a4", "b1", "c1", "b2"}) {
      queue.Run(std::string(1, name[0]), [&, name] {
        std::lock_guard lock(mutex);
        done.emplace_back(name);
      });
    }
    go.set_value();
  }  // the queued work runs
  EXPECT_THAT(done, ElementsAre("a1", "b1", "c1", "a2", "b2", "a3", "a4"));
}

TEST(WorkQueue, OneClientNeverHasAllThreads) {
  std::promise<void> go, two_run;
  const std::shared_future<void> gate = go.get_future().share();
  std::atomic<int> running = 0;
  WorkQueue queue(host_time, 3);  // ends first: its functions use the others
  for (int i = 0; i < 10; ++i) {
    queue.Run("much", [&running, &two_run, gate] {
      if (++running == 2) two_run.set_value();
      gate.wait();
    });
  }
  two_run.get_future().wait();    // a thread may begin late
  for (int i = 0; i < 20; ++i) {  // done while the other client's work stands still
    const auto ran = std::make_shared<std::promise<void>>();
    queue.Run("little", [ran] { ran->set_value(); });
    ran->get_future().wait();
  }
  EXPECT_EQ(running, 2);
  go.set_value();
}

TEST(WorkQueue, WorkMayBringMoreWork) {
  std::atomic<int> count = 0;
  {
    WorkQueue queue(host_time, 2);
    for (int i = 0; i < 50; ++i) {
      queue.Run("a", [&] {
        ++count;
        queue.Run("b", [&count] { ++count; });
      });
    }
  }
  EXPECT_EQ(count, 100);
}

void Use(absl::Duration time) {
  const absl::Duration begin = ThreadTime();
  while (ThreadTime() - begin < time) {
  }
}

TEST(WorkQueue, WhatFunctionsTakeIsChargedToTheirClient) {
  engine::HostTime charged;
  {
    WorkQueue queue(charged, 2);
    queue.Run("much", [] { Use(absl::Milliseconds(30)); });
    queue.Run("little", [] { Use(absl::Milliseconds(3)); });
  }
  charged.Settle(std::nullopt);
  const std::vector<engine::HostDebt> debts = charged.debts();
  ASSERT_EQ(debts.size(), 2u);
  EXPECT_EQ(debts[0].client, "little");
  EXPECT_GE(debts[0].seconds, 0.003);
  EXPECT_LT(debts[0].seconds, 0.03);
  EXPECT_GE(debts[1].seconds, 0.03);
}

TEST(WorkQueue, CallsOfAClientInDebtWaitUntilItIsPaid) {
  engine::HostTime charged;
  charged.Charge("debtor", absl::Milliseconds(100));
  charged.Settle(std::nullopt);
  WorkQueue queue(charged, 2, /*nice=*/0, /*longest_hold=*/std::chrono::hours(1));
  std::promise<void> ran;
  std::future<void> waits = ran.get_future();
  queue.Begin("debtor", 0, [&ran] { ran.set_value(); });
  for (int i = 0; i < 20; ++i) {
    std::promise<void> other, begun;
    queue.Begin("other", 0, [&other] { other.set_value(); });
    other.get_future().wait();
    queue.Run("debtor", [&begun] { begun.set_value(); });
    begun.get_future().wait();  // what has begun goes on
  }
  EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(charged.stats().calls_held, 1);
  charged.Pay({{.client = "debtor", .paid = 0.099}});
  EXPECT_EQ(waits.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

TEST(WorkQueue, NoDebtKeepsAClientOutForEver) {
  engine::HostTime charged;
  charged.Charge("debtor", absl::Seconds(100));
  charged.Settle(std::nullopt);
  WorkQueue queue(charged, 2);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 1; i <= 2; ++i) {
    std::promise<void> ran;
    queue.Begin("debtor", 0, [&ran] { ran.set_value(); });
    ran.get_future().wait();
    EXPECT_GE(std::chrono::steady_clock::now() - begin, i * WorkQueue::kLongestHold)
        << "each call waits anew";
  }
  EXPECT_EQ(charged.stats().calls_held, 2);
}

// The next call of a client in debt waits for the end of the one before, however long that takes.
TEST(WorkQueue, AClientInDebtHasOneThread) {
  engine::HostTime charged;
  charged.Charge("debtor", absl::Seconds(100));
  charged.Settle(std::nullopt);
  WorkQueue queue(charged, 4);
  std::promise<void> running, go, ran;
  queue.Begin("debtor", 0, [&running, gate = go.get_future().share()] {
    running.set_value();
    gate.wait();
  });
  running.get_future().wait();
  queue.Begin("debtor", 0, [&ran] { ran.set_value(); });
  std::future<void> next = ran.get_future();
  EXPECT_EQ(next.wait_for(WorkQueue::kLongestHold + std::chrono::milliseconds(300)),
            std::future_status::timeout);
  go.set_value();
  EXPECT_EQ(next.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

// A client's large messages are parsed one at a time; its small ones and other clients go on.
TEST(WorkQueue, AClientHasOneLargeMessageAtATime) {
  constexpr size_t kLarge = WorkQueue::kLargeMessage + 1;
  engine::HostTime charged;
  WorkQueue queue(charged, 4);
  std::promise<void> running, go, second, small, other;
  queue.Begin("a", kLarge, [&running, gate = go.get_future().share()] {
    running.set_value();
    gate.wait();
  });
  running.get_future().wait();
  queue.Begin("a", kLarge, [&second] { second.set_value(); });
  queue.Begin("a", WorkQueue::kLargeMessage, [&small] { small.set_value(); });
  queue.Begin("b", kLarge, [&other] { other.set_value(); });
  small.get_future().wait();
  other.get_future().wait();
  std::future<void> next = second.get_future();
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  go.set_value();
  EXPECT_EQ(next.wait_for(std::chrono::seconds(30)), std::future_status::ready);
}

// A call that is given up waits for no debt, for none of its client's calls, and is run once.
TEST(WorkQueue, CallsThatAreGivenUpDoNotWait) {
  engine::HostTime charged;
  charged.Charge("debtor", absl::Seconds(100));
  charged.Settle(std::nullopt);
  std::atomic<int> runs = 0;
  std::promise<void> go;
  {
    WorkQueue queue(charged, 3);
    std::promise<void> running;
    queue.Begin("debtor", WorkQueue::kLargeMessage + 1, [&running, gate = go.get_future().share()] {
      running.set_value();
      gate.wait();
    });
    running.get_future().wait();
    for (const size_t bytes : {size_t{0}, WorkQueue::kLargeMessage + 1}) {
      for (const bool before : {false, true}) {
        const auto cancel = std::make_shared<engine::CancelSignal>();
        if (before) cancel->Cancel();
        std::promise<void> ran;
        std::future<void> waits = ran.get_future();
        queue.Begin(
            "debtor", bytes, [&] { ++runs, ran.set_value(); }, cancel);
        if (!before) {
          EXPECT_EQ(waits.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
          cancel->Cancel();
        }
        ASSERT_EQ(waits.wait_for(std::chrono::seconds(30)), std::future_status::ready);
        cancel->Wake();  // too late
      }
    }
    go.set_value();
  }
  EXPECT_EQ(runs, 4);
}

// A client's calls that begin are behind its calls that go on.
TEST(WorkQueue, WhatHasBegunComesFirst) {
  std::vector<std::string> done;
  {
    std::promise<void> running, go;
    WorkQueue queue(host_time, 1);
    queue.Run("first", [&running, gate = go.get_future().share()] {
      running.set_value();
      gate.wait();
    });
    running.get_future().wait();
    for (const char* name : {"b1", "b2"}) {
      queue.Begin("a", 0, [&done, name] { done.push_back(name); });
    }
    queue.Run("a", [&done] { done.push_back("r"); });
    go.set_value();
  }
  EXPECT_THAT(done, ElementsAre("r", "b1", "b2"));
}

TEST(WorkQueue, WhatWaitsForADebtRunsAtTheEnd) {
  engine::HostTime charged;
  charged.Charge("debtor", absl::Milliseconds(100));
  charged.Settle(std::nullopt);
  bool ran = false;
  {
    WorkQueue queue(charged, 2);
    queue.Begin("debtor", 0, [&ran] { ran = true; });
  }
  EXPECT_TRUE(ran);
}

TEST(Strand, WhatRunsOnTheCallersThreadIsCharged) {
  engine::HostTime charged;
  WorkQueue queue(charged, 1);
  Strand strand(queue, "before");
  strand.SetClient("caller");
  strand.Dispatch([] { Use(absl::Milliseconds(2)); });
  charged.Settle(std::nullopt);
  ASSERT_EQ(charged.debts().size(), 1u);
  EXPECT_EQ(charged.debts().front().client, "caller");
}

}  // namespace
}  // namespace ovq::server::test
