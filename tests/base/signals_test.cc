#include "base/signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "absl/synchronization/notification.h"

namespace ovq {
namespace {

TEST(Signals, AreCallsOnAnotherThreadWhileThereIsAWaiter) {
  BlockSignals({SIGINT, SIGTERM});
  for (const int signal : {SIGINT, SIGTERM}) {
    absl::Notification came;
    std::atomic<int> which = 0;
    const SignalWaiter waiter({SIGINT, SIGTERM}, [&](int number) {
      which = number;
      came.Notify();
    });
    kill(getpid(), signal);
    ASSERT_TRUE(came.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(which, signal);
  }
}

TEST(Signals, ItsOwnFromElsewhereDoesNothing) {
  BlockSignals({SIGINT});
  absl::Notification came;
  const SignalWaiter waiter({SIGINT}, [&](int) { came.Notify(); });
  kill(getpid(), SIGUSR1);
  kill(getpid(), SIGUSR1);
  kill(getpid(), SIGINT);
  EXPECT_TRUE(came.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

// A signal stays pending without a waiter, and does not end the program.
TEST(Signals, WaitForTheNextWaiter) {
  BlockSignals({SIGINT});
  {
    const SignalWaiter waiter({SIGINT}, [](int) {});
  }
  kill(getpid(), SIGINT);
  absl::Notification came;
  const SignalWaiter waiter({SIGINT}, [&](int) { came.Notify(); });
  EXPECT_TRUE(came.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

}  // namespace
}  // namespace ovq
