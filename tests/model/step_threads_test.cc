#include "model/step_threads.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <thread>

#include "tests/model/golden_util.h"

namespace ovq::test {
namespace {

// Of a model in bfloat16, some rows of one token each, every session with this much state.
StepWork Rows(double parameters, int n_layers, int n_rows, double state_bytes) {
  return {.bytes = 2 * parameters + n_rows * state_bytes,
          .products = n_rows * parameters,
          .n_layers = n_layers,
          .n_answers = n_rows};
}

TEST(StepThreads, FewRowsOfASmallModelAreFasterAlone) {
  const auto rows = [](int n) { return Rows(3.1e6, 4, n, 1e6); };
  EXPECT_TRUE(IsFasterAlone(rows(1), 2));
  EXPECT_TRUE(IsFasterAlone(rows(8), 2));
  EXPECT_TRUE(IsFasterAlone(rows(16), 2));
  EXPECT_FALSE(IsFasterAlone(rows(64), 2));
  StepWork prompt = rows(64);
  prompt.n_answers = 1;
  EXPECT_FALSE(IsFasterAlone(prompt, 2));
}

TEST(StepThreads, WhoWritesAnswersNeedsACore) {
  StepWork work = Rows(3.1e6, 4, 16, 1e6);
  EXPECT_TRUE(IsFasterAlone(work, 2));
  work.n_answers = 1;
  EXPECT_FALSE(IsFasterAlone(work, 2));
}

TEST(StepThreads, ALargeModelTakesAllThreadsForOneRow) {
  EXPECT_FALSE(IsFasterAlone(Rows(69e6, 8, 1, 10e6), 2));
  EXPECT_FALSE(IsFasterAlone(Rows(453e6, 21, 1, 10e6), 2));
}

TEST(StepThreads, MoreThreadsSaveMore) {
  const StepWork between = Rows(15e6, 6, 1, 1e6);  // 1.1 ms, and 0.6 ms of waking
  EXPECT_TRUE(IsFasterAlone(between, 2));
  EXPECT_FALSE(IsFasterAlone(between, 16));
}

TEST(StepThreads, OneThreadIsAlwaysAlone) {
  EXPECT_TRUE(IsFasterAlone(Rows(453e6, 21, 512, 0), 1));
}

TEST(StepThreads, AContextHasItsThreadsAgainAfterASmallStep) {
  const auto context = BoundContext(Device::kCpu, 2);
  EXPECT_EQ(context->n_threads(), 2);
  {
    const AloneScope alone(*context, true);
    EXPECT_EQ(context->n_threads(), 1);
    const AloneScope within(*context, false);
    EXPECT_EQ(context->n_threads(), 2);
  }
  EXPECT_EQ(context->n_threads(), 2);
}

int64_t ThreadsOfTheProcess() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// Threads that a step of so many rows calls for, on a thread that has never called for any.
int64_t ThreadsCalled(const LanguageModel& model, DeviceContext& context, size_t n_rows) {
  int64_t called = 0;
  std::thread([&] {
    context.BindThread();
    const int64_t before = ThreadsOfTheProcess();
    Session session(model, context, std::vector<int32_t>(n_rows, 1), /*slot_cap=*/64);
    session.Feed(static_cast<int64_t>(n_rows));
    called = ThreadsOfTheProcess() - before;
  }).join();
  return called;
}

TEST(StepThreads, AModelsSmallStepsCallForNoThreads) {
  const auto context = BoundContext(Device::kCpu, 4);
  const auto model = LoadModel(LoadGolden("sw-ovq").folder, *context);
  EXPECT_EQ(ThreadsCalled(*model, *context, 1), 0);
  EXPECT_EQ(ThreadsCalled(*model, *context, 2000), 3);
}

}  // namespace
}  // namespace ovq::test
