// The end of calls over gRPC: what is left of them when the runner hears of it.
#include "clients/load/program/grpc_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"

namespace ovq::load {
namespace {

// Makes a call, which fails, and destroys the calls as soon as its `done` is called, as the program
// does at its end. Their last channel waits for gRPC's threads, unless something of the call on one
// of these threads still shares it.
void ExpectTheChannelEndsWithTheCalls(
    const std::function<void(const Calls&, std::function<void()> done)>& start) {
  Options options;
  options.connect.server = "127.0.0.1:1";  // nobody listens there
  options.timeout = absl::Seconds(10);
  auto made = GrpcCalls::Make(options);
  ASSERT_TRUE(made.ok()) << made.status();
  std::unique_ptr<GrpcCalls> owner = *std::move(made);
  const Calls calls = owner->calls();
  absl::Notification ended;
  std::atomic<bool> over = false;
  start(calls, [&] {
    ended.Notify();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    over = true;
  });
  ended.WaitForNotification();
  owner.reset();
  EXPECT_TRUE(over) << "the channel had another owner";
  while (!over) std::this_thread::yield();
}

TEST(GrpcCalls, AnAnswerThatEndsKeepsNoChannel) {
  ExpectTheChannelEndsWithTheCalls([](const Calls& calls, std::function<void()> done) {
    calls.generate({.prompt = {1}}, [done = std::move(done)](const Outcome&) { done(); });
  });
}

TEST(GrpcCalls, ACallForASessionThatEndsKeepsNoChannel) {
  ExpectTheChannelEndsWithTheCalls([](const Calls& calls, std::function<void()> done) {
    calls.delete_session("none", [done = std::move(done)](const absl::Status&) { done(); });
  });
}

}  // namespace
}  // namespace ovq::load
