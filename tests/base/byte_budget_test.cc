#include "base/byte_budget.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace ovq {
namespace {

TEST(ByteBudget, AClientLeavesAsMuchAsItHas) {
  const auto budget = std::make_shared<ByteBudget>(100);
  ByteHold first(budget, "a"), second(budget, "a"), other(budget, "b");
  EXPECT_EQ(first.Acquire(51), 50u);
  EXPECT_EQ(first.Acquire(40), std::nullopt);
  EXPECT_EQ(second.Acquire(11), 10u) << "calls of a client count together";
  EXPECT_EQ(second.Acquire(10), std::nullopt);
  EXPECT_EQ(second.Acquire(1), 0u);
  EXPECT_EQ(second.Acquire(0), std::nullopt);
  EXPECT_EQ(other.Acquire(26), 25u);
  EXPECT_EQ(other.Acquire(25), std::nullopt);
  EXPECT_EQ(budget->held(), 75u);
}

TEST(ByteBudget, WhatGoesIsReleased) {
  const auto budget = std::make_shared<ByteBudget>(100);
  {
    ByteHold hold(budget, "a");
    EXPECT_EQ(hold.Acquire(20), std::nullopt);
    EXPECT_EQ(hold.Acquire(30), std::nullopt);
    EXPECT_EQ(hold.Acquire(1), 0u);
    EXPECT_EQ(hold.bytes(), 50u);
  }
  EXPECT_EQ(budget->held(), 0u);
  ByteHold again(budget, "a");
  EXPECT_EQ(again.Acquire(50), std::nullopt);
}

TEST(ByteBudget, AHoldShrinks) {
  const auto budget = std::make_shared<ByteBudget>(100);
  ByteHold hold(budget, "a");
  EXPECT_EQ(hold.Acquire(40), std::nullopt);
  hold.ShrinkTo(50);
  EXPECT_EQ(budget->held(), 40u) << "it never grows";
  hold.ShrinkTo(10);
  EXPECT_EQ(hold.bytes(), 10u);
  EXPECT_EQ(budget->held(), 10u);
  EXPECT_EQ(hold.Acquire(40), std::nullopt);
  hold.ShrinkTo(0);
  EXPECT_EQ(budget->held(), 0u);
}

TEST(ByteBudget, IsNeverExceeded) {
  const auto budget = std::make_shared<ByteBudget>(1000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 2000; ++round) {
        ByteHold hold(budget, std::to_string(i % 3));
        (void)hold.Acquire(static_cast<size_t>(100 + round % 300));
        EXPECT_LE(budget->held(), 1000u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(budget->held(), 0u);
}

}  // namespace
}  // namespace ovq
