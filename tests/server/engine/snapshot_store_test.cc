// SnapshotStore by itself: keys, the order of use and the budget.
#include "server/engine/common/snapshot_store.h"

#include <gtest/gtest.h>

#include "tests/server/engine/fake_model.h"
#include "tests/server/engine/parts.h"

namespace ovq::engine::test {
namespace {

class SnapshotStoreTest : public testing::Test {
 protected:
  ~SnapshotStoreTest() override { parts_.pool.Release(state_); }

  Parts parts_;
  StateHandle state_ =
      *parts_.pool.Acquire(parts_.model.layout(), 16, parts_.model.layout().bytes_cap(16));
  const size_t each_ = parts_.pool.SnapshotBytes(state_);
};

TEST_F(SnapshotStoreTest, TheKeyUsedLongestAgoLosesItsFirst) {
  SnapshotStore store(3 * each_, parts_.pool);
  store.Put("a", {store.Copy(state_), store.Copy(state_)});
  store.Put("b", {store.Copy(state_)});
  const StateSnapshot* const second = store.Find("a")[1].get();
  EXPECT_EQ(store.EvictOne(), "a");
  ASSERT_EQ(store.Find("a").size(), 1u);
  EXPECT_EQ(store.Find("a")[0].get(), second);
  store.Use("a");
  EXPECT_EQ(store.EvictOne(), "b");
  EXPECT_TRUE(store.Find("b").empty());
  store.Put("a", {});
  EXPECT_TRUE(store.Find("a").empty());
  EXPECT_EQ(store.bytes(), 0u);
}

TEST_F(SnapshotStoreTest, ASnapshotOfTwoKeysCountsOnce) {
  SnapshotStore store(3 * each_, parts_.pool);
  store.Put("a", {store.Copy(state_)});
  store.Put("b", store.Find("a"));
  EXPECT_EQ(store.bytes(), each_);
  store.Put("a", {});
  EXPECT_EQ(store.bytes(), each_);
  store.Put("b", {});
  EXPECT_EQ(store.bytes(), 0u);
}

TEST_F(SnapshotStoreTest, ShrinksToWhatIsBeingFilled) {
  SnapshotStore store(each_, parts_.pool);
  EXPECT_EQ(SnapshotStore(each_ - 1, parts_.pool).Make(state_), nullptr) << "more than the budget";
  std::shared_ptr<StateSnapshot> first = store.Make(state_), second = store.Make(state_);
  store.Put("a", {store.Copy(state_)});
  store.Shrink();
  EXPECT_TRUE(store.Find("a").empty());
  EXPECT_EQ(store.bytes(), 2 * each_);
  first.reset();
  second.reset();
  EXPECT_EQ(store.bytes(), 0u);
}

}  // namespace
}  // namespace ovq::engine::test
