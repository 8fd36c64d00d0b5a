#include "server/calls/work_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ovq::server::test {
namespace {

using testing::ElementsAre;

TEST(WorkQueue, ClientsAreInTurnAndEachInItsOwnOrder) {
  std::mutex mutex;
  std::vector<std::string> done;
  {
    std::promise<void> running, go;
    WorkQueue queue(1);
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
  WorkQueue queue(3);
  std::promise<void> go;
  const std::shared_future<void> gate = go.get_future().share();
  std::atomic<int> running = 0;
  for (int i = 0; i < 10; ++i) {
    queue.Run("much", [&running, gate] {
      ++running;
      gate.wait();
    });
  }
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
    WorkQueue queue(2);
    for (int i = 0; i < 50; ++i) {
      queue.Run("a", [&] {
        ++count;
        queue.Run("b", [&count] { ++count; });
      });
    }
  }
  EXPECT_EQ(count, 100);
}

}  // namespace
}  // namespace ovq::server::test
