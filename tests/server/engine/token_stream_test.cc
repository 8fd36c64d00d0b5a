#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "server/engine/common/engine_api.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {
namespace {

StreamEvent Token(int32_t id) {
  StreamEvent event;
  event.chunk.emplace().token_ids.push_back(id);
  return event;
}

TEST(TokenStream, EventsComeInOrderThenTheStatus) {
  TokenStream stream;
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) stream.Push(Token(i));
    stream.Close(absl::CancelledError("x"));
  });
  for (int i = 0; i < 1000; ++i) {
    const std::optional<StreamEvent> event = Pop(stream);
    ASSERT_TRUE(event);
    EXPECT_EQ(event->chunk->token_ids[0], i);
  }
  EXPECT_FALSE(Pop(stream));
  EXPECT_TRUE(stream.closed());
  EXPECT_EQ(stream.status().code(), absl::StatusCode::kCancelled);
  writer.join();
}

TEST(TokenStream, WakesWhenItDrainsAndWhenItIsCancelled) {
  TokenStream stream(2);
  int woken = 0;
  stream.cancel_signal().SetWake([&] { ++woken; });
  EXPECT_FALSE(stream.full());
  for (int i = 0; i < 3; ++i) stream.Push(Token(i));  // one beyond the bound: the engine's slack
  EXPECT_TRUE(stream.full());
  stream.TryPop();
  EXPECT_TRUE(stream.full());
  EXPECT_EQ(woken, 0);
  stream.TryPop();
  EXPECT_FALSE(stream.full());
  EXPECT_EQ(woken, 1);
  stream.TryPop();
  EXPECT_EQ(woken, 1);
  EXPECT_FALSE(stream.cancel_signal().cancelled());
  stream.Cancel();
  stream.Cancel();
  EXPECT_LE(stream.cancel_signal().time(), std::chrono::steady_clock::now());
  EXPECT_TRUE(stream.cancel_signal().cancelled());
  EXPECT_EQ(woken, 2);
}

TEST(TokenStream, ListenerIsCalledForEveryEventAndAtOnceForWaitingOnes) {
  TokenStream stream;
  int calls = 0;
  stream.SetListener([&] { ++calls; });
  EXPECT_EQ(calls, 0);
  stream.Push(Token(1));
  EXPECT_EQ(calls, 1);
  stream.SetListener([&] { calls += 10; });
  EXPECT_EQ(calls, 11);
  stream.Close(absl::OkStatus());
  EXPECT_EQ(calls, 21);
  stream.SetListener(nullptr);
  EXPECT_EQ(calls, 21);
}

TEST(TokenStream, ListenerMayReadCancelAndRemoveItself) {
  TokenStream stream;
  int calls = 0;
  stream.SetListener([&] {
    ++calls;
    EXPECT_TRUE(stream.TryPop());
    stream.Cancel();
    stream.SetListener(nullptr);
  });
  stream.Push(Token(1));
  stream.Push(Token(2));
  EXPECT_EQ(calls, 1);
}

TEST(TokenStream, RemovingTheListenerWaitsForARunningCall) {
  TokenStream stream;
  std::latch entered(1), leave(1);
  std::atomic<bool> returned = false;
  stream.SetListener([&] {
    entered.count_down();
    leave.wait();
    returned = true;
  });
  std::thread writer([&] { stream.Push(Token(1)); });
  entered.wait();
  std::thread remover([&] {
    stream.SetListener(nullptr);
    EXPECT_TRUE(returned);
  });
  leave.count_down();
  remover.join();
  writer.join();
}

}  // namespace
}  // namespace ovq::engine::test
