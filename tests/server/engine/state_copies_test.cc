// StateCopies: copies are spread over iterations, and leave batches their time.
#include "server/engine/common/state_copies.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

namespace ovq::engine {
namespace {

using std::chrono::milliseconds;

class StateCopiesTest : public testing::Test {
 protected:
  // Adds n copies of 10 ms each, one an iteration.
  void Add(int n) {
    copies_.Add(
        [this, n, made = 0](size_t& bytes) mutable {
          now_ += milliseconds(10);
          bytes += kBytes;
          ++n_copies_;
          return ++made < n;
        },
        /*at_once=*/false);
  }
  void RunBatch(milliseconds time) {
    now_ += time;
    copies_.NoteBatch();
  }

  static constexpr size_t kBytes = 100;
  SteadyTime now_{std::chrono::hours(1)};
  int n_copies_ = 0;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  const std::shared_ptr<HostTime> host_time_ = std::make_shared<HostTime>();
  StateCopies copies_{kBytes, inbox_, {.steady = [this] { return now_; }}, host_time_};
};

TEST_F(StateCopiesTest, BatchesHaveAsMuchTimeAsCopies) {
  Add(8);
  Add(8);
  const SteadyTime begin = now_;
  SteadyTime::duration batches{};
  while (n_copies_ < 16) {
    inbox_->RunAll();
    RunBatch(milliseconds(3));
    batches += milliseconds(3);
  }
  EXPECT_GE(batches, milliseconds(150)) << "between 16 copies of 10 ms";
  EXPECT_LE(now_ - begin, milliseconds(160 + 16 * 12)) << "and no more than needed";
}

TEST_F(StateCopiesTest, WhereNoBatchRunsCopiesDoNotWait) {
  Add(5);
  for (int i = 0; i < 5; ++i) inbox_->RunAll();
  EXPECT_EQ(n_copies_, 5);

  Add(3);
  inbox_->RunAll();
  RunBatch(milliseconds(3));
  inbox_->RunAll();
  EXPECT_EQ(n_copies_, 6) << "the batch has its part";
  inbox_->RunAll();
  EXPECT_EQ(n_copies_, 7) << "and nobody else wants one";
}

TEST_F(StateCopiesTest, ClientsOweTheTimeOfTheirCopies) {
  const int result = copies_.CopyFor("a", [this] {
    now_ += milliseconds(12);
    return 5;
  });
  EXPECT_EQ(result, 5);
  const std::vector<HostDebt> debts = host_time_->debts();
  ASSERT_EQ(debts.size(), 1u);
  EXPECT_EQ(debts[0].client, "a");
  EXPECT_NEAR(debts[0].seconds, 0.012, 1e-6);
}

}  // namespace
}  // namespace ovq::engine
