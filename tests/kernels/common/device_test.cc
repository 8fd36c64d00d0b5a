#include "kernels/common/device.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/common/parallel.h"
#include "kernels/ops/parallel_rows.h"
#include "tests/test_util.h"

namespace ovq::kernels {
namespace {

bool Aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % ScratchArena::kAlignment == 0;
}

TEST(ScratchArena, AllocationsAreAlignedAndDisjoint) {
  ScratchArena arena(Device::kCpu);
  std::vector<std::pair<unsigned char*, size_t>> all;
  // The sizes cross the end of several blocks.
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{700'000},
                       size_t{500'000}, size_t{5'000'000}, size_t{10}, size_t{3'000'000}}) {
    auto* memory = static_cast<unsigned char*>(arena.Allocate(bytes));
    ASSERT_TRUE(Aligned(memory)) << bytes;
    std::memset(memory, static_cast<int>(all.size() + 1), bytes);
    all.emplace_back(memory, bytes);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t k = 0; k < all[i].second; ++k) ASSERT_EQ(all[i].first[k], i + 1);
  }
}

TEST(ScratchArena, ASteadyLoopAllocatesNothing) {
  ScratchArena arena(Device::kCpu);
  size_t capacity = 0;
  std::vector<void*> first;
  for (int step = 0; step < 5; ++step) {
    const size_t mark = arena.mark();
    std::vector<void*> now;
    for (size_t bytes : {300'000, 900'000, 100, 4'000'000, 2'000'000}) {
      now.push_back(arena.Allocate(bytes));
    }
    arena.Rewind(mark);
    if (step == 0) {
      first = now;
      capacity = arena.capacity_bytes();
    }
    EXPECT_EQ(now, first) << step;
    EXPECT_EQ(arena.capacity_bytes(), capacity) << step;
  }
  EXPECT_GE(capacity, 7'200'100u);
}

TEST(ScratchScope, FreesWhatWasAllocatedInside) {
  auto context = test::MakeContext(Device::kCpu);
  ScratchScope outer(*context);
  auto* kept = outer.Allocate<float>(100);
  std::fill(kept, kept + 100, 7.0f);
  void* before;
  {
    ScratchScope inner(*context);
    before = inner.Allocate<float>(1000);
    std::memset(before, 0, 4000);
  }
  ScratchScope again(*context);
  EXPECT_EQ(again.Allocate<float>(1000), before);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(kept[i], 7.0f);
}

TEST(DeviceContext, Threads) {
  EXPECT_EQ(DeviceContext::Make(Device::kReference, 4).value()->n_threads(), 1);
  EXPECT_EQ(DeviceContext::Make(Device::kCpu, 3).value()->n_threads(), 3);
  EXPECT_EQ(DeviceContext::Make(Device::kCpu, 0).value()->n_threads(), omp_get_num_procs());
  EXPECT_FALSE(DeviceContext::Make(Device::kCpu, -1).ok());
}

TEST(DeviceContext, BindThreadSetsTheTeamOfTheCallingThreadOnly) {
  auto context = test::MakeContext(Device::kCpu, 3);
  const int here = omp_get_max_threads();
  int there = 0;
  std::thread([&] {
    context->BindThread();
    there = omp_get_max_threads();
  }).join();
  EXPECT_EQ(there, 3);
  EXPECT_EQ(omp_get_max_threads(), here);
}

TEST(ParallelFor, RunsEveryTaskOnce) {
  for (int n_threads : {1, 2, 5}) {
    auto context = test::MakeContext(Device::kCpu, n_threads);
    for (int64_t n : {0, 1, 2, 100}) {
      std::vector<int> runs(static_cast<size_t>(n), 0);
      std::vector<int> thread_of(static_cast<size_t>(n), -1);
      ParallelFor(*context, n, [&](int64_t task, int thread) {
        ++runs[static_cast<size_t>(task)];
        thread_of[static_cast<size_t>(task)] = thread;
      });
      for (size_t i = 0; i < runs.size(); ++i) {
        ASSERT_EQ(runs[i], 1);
        ASSERT_GE(thread_of[i], 0);
        ASSERT_LT(thread_of[i], n_threads);
      }
    }
  }
}

TEST(ParallelRows, CoversEveryRowOnceAndKeepsSmallInputsHere) {
  auto context = test::MakeContext(Device::kCpu, 2);
  for (int64_t n : {0, 1, 7, 100, 1001}) {
    for (int64_t work : {1, 1000, 1'000'000}) {
      std::vector<int> runs(static_cast<size_t>(n), 0);
      ParallelRows(*context, n, work, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) ++runs[static_cast<size_t>(row)];
      });
      for (int count : runs) ASSERT_EQ(count, 1) << n << " rows, work " << work;
    }
  }
  int calls = 0;
  ParallelRows(*context, 100, 10, [&](int64_t, int64_t) { ++calls; });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace ovq::kernels
