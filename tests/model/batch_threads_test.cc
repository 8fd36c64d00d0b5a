#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>
#include <thread>

#include "model/batch.h"
#include "tests/model/golden_util.h"

namespace ovq::model::test {
namespace {

// The work of a batch of n_tokens sequences with one token each: a bfloat16 model, this much state
// a session.
BatchWork MakeWork(double parameters, int n_layers, int n_tokens, double state_bytes) {
  return {.bytes = 2 * parameters + n_tokens * state_bytes,
          .products = n_tokens * parameters,
          .n_layers = n_layers,
          .n_answers = n_tokens};
}

TEST(BatchThreads, FewTokensOfASmallModelAreFasterAlone) {
  const auto rows = [](int n) { return MakeWork(3.1e6, 4, n, 1e6); };
  EXPECT_TRUE(IsFasterOnOneThread(rows(1), 2));
  EXPECT_TRUE(IsFasterOnOneThread(rows(8), 2));
  EXPECT_TRUE(IsFasterOnOneThread(rows(16), 2));
  EXPECT_FALSE(IsFasterOnOneThread(rows(64), 2));
  BatchWork prompt = rows(64);
  prompt.n_answers = 1;
  EXPECT_FALSE(IsFasterOnOneThread(prompt, 2));
}

TEST(BatchThreads, WhoWritesAnswersNeedsACore) {
  BatchWork work = MakeWork(3.1e6, 4, 16, 1e6);
  EXPECT_TRUE(IsFasterOnOneThread(work, 2));
  work.n_answers = 1;
  EXPECT_FALSE(IsFasterOnOneThread(work, 2));
}

TEST(BatchThreads, ALargeModelUsesAllThreadsForOneToken) {
  EXPECT_FALSE(IsFasterOnOneThread(MakeWork(69e6, 8, 1, 10e6), 2));
  EXPECT_FALSE(IsFasterOnOneThread(MakeWork(453e6, 21, 1, 10e6), 2));
}

TEST(BatchThreads, MoreThreadsSaveMore) {
  const BatchWork between = MakeWork(15e6, 6, 1, 1e6);  // 1.1 ms, and 0.6 ms of waking
  EXPECT_TRUE(IsFasterOnOneThread(between, 2));
  EXPECT_FALSE(IsFasterOnOneThread(between, 16));
}

TEST(BatchThreads, SmallExpertsAreCalledOneByOne) {
  BatchWork work = MakeWork(40e6, 8, 1, 1e6);
  EXPECT_FALSE(IsFasterOnOneThread(work, 2));
  work.n_expert_calls = 8 * 2 * 8;
  EXPECT_TRUE(IsFasterOnOneThread(work, 2));
}

TEST(BatchThreads, OneThreadIsAlwaysAlone) {
  EXPECT_TRUE(IsFasterOnOneThread(MakeWork(453e6, 21, 512, 0), 1));
}

TEST(BatchThreads, AContextHasItsThreadsAgainAfterASmallBatch) {
  const auto context = BoundContext(kernels::Device::kCpu, 2);
  EXPECT_EQ(context->n_threads(), 2);
  {
    const kernels::SingleThreadScope alone(*context, true);
    EXPECT_EQ(context->n_threads(), 1);
    const kernels::SingleThreadScope within(*context, false);
    EXPECT_EQ(context->n_threads(), 2);
  }
  EXPECT_EQ(context->n_threads(), 2);
}

int64_t ThreadsOfTheProcess() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

// Number of threads that a batch calls, on a thread that has never called any.
int64_t ThreadsCalled(const LanguageModel& model, kernels::DeviceContext& context,
                      size_t n_tokens) {
  int64_t called = 0;
  std::thread([&] {
    context.BindThread();
    const int64_t before = ThreadsOfTheProcess();
    Session session(model, context, std::vector<int32_t>(n_tokens, 1), /*slot_cap=*/64);
    session.Feed(static_cast<int64_t>(n_tokens));
    called = ThreadsOfTheProcess() - before;
  }).join();
  return called;
}

TEST(BatchThreads, SmallBatchesOfAModelUseOneThread) {
  const auto context = BoundContext(kernels::Device::kCpu, 4);
  const auto model = LoadModel(LoadGolden("sw-ovq").folder, *context);
  EXPECT_EQ(ThreadsCalled(*model, *context, 1), 0);
  EXPECT_EQ(ThreadsCalled(*model, *context, 2000), 3);
}

}  // namespace
}  // namespace ovq::model::test
