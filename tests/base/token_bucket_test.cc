#include "base/token_bucket.h"

#include <gtest/gtest.h>

namespace ovq {
namespace {

constexpr SteadyTime kBegin{std::chrono::hours(1)};

TEST(TokenBucket, GainsItsRateUpToItsSize) {
  TokenBucket bucket(4, 6, kBegin);
  EXPECT_EQ(bucket.left(kBegin), 6);
  bucket.Take(6);
  EXPECT_EQ(bucket.left(kBegin), 0);
  EXPECT_EQ(bucket.left(kBegin + std::chrono::milliseconds(250)), 1);
  EXPECT_EQ(bucket.left(kBegin), 1) << "an earlier time changes nothing";
  EXPECT_EQ(bucket.left(kBegin + std::chrono::milliseconds(500)), 2);
  EXPECT_EQ(bucket.left(kBegin + std::chrono::hours(1)), 6);
}

TEST(TokenBucket, ADebtIsWaitedOff) {
  TokenBucket bucket(100, 100, kBegin);
  EXPECT_EQ(bucket.Until(100, kBegin), absl::ZeroDuration());
  bucket.Take(299);
  EXPECT_EQ(bucket.left(kBegin), -199);
  EXPECT_EQ(bucket.Until(1, kBegin), absl::Seconds(2));
  EXPECT_EQ(bucket.left(kBegin + std::chrono::seconds(2)), 1);
  bucket.Take(0.05);
  EXPECT_EQ(bucket.Until(1, kBegin + std::chrono::seconds(2)), absl::Milliseconds(1));
  bucket.Take(1e12);
  EXPECT_EQ(bucket.Until(1, kBegin + std::chrono::seconds(2)), absl::Hours(24));
}

TEST(TokenBucket, ANewRateKeepsWhatIsLeft) {
  TokenBucket bucket(10, 10, kBegin);
  bucket.Take(10);
  const SteadyTime later = kBegin + std::chrono::milliseconds(500);
  bucket.SetRate(1, 2, later);  // five were gained until now
  EXPECT_EQ(bucket.left(later), 2);
  bucket.Take(2);
  EXPECT_EQ(bucket.left(later + std::chrono::seconds(1)), 1);
}

TEST(TokenBucket, OfNothingStaysEmpty) {
  TokenBucket bucket;
  EXPECT_EQ(bucket.left(kBegin), 0);
  EXPECT_EQ(bucket.left(kBegin + std::chrono::hours(1)), 0);
}

}  // namespace
}  // namespace ovq
