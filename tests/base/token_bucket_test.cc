#include "base/token_bucket.h"

#include <gtest/gtest.h>

namespace ovq {
namespace {

constexpr SteadyTime kBucketBegin{std::chrono::hours(1)};

TEST(TokenBucket, GainsItsRateUpToItsSize) {
  TokenBucket bucket(4, 6, kBucketBegin);
  EXPECT_EQ(bucket.left(kBucketBegin), 6);
  bucket.Charge(6);
  EXPECT_EQ(bucket.left(kBucketBegin), 0);
  EXPECT_EQ(bucket.left(kBucketBegin + std::chrono::milliseconds(250)), 1);
  EXPECT_EQ(bucket.left(kBucketBegin), 1) << "an earlier time changes nothing";
  EXPECT_EQ(bucket.left(kBucketBegin + std::chrono::milliseconds(500)), 2);
  EXPECT_EQ(bucket.left(kBucketBegin + std::chrono::hours(1)), 6);
}

TEST(TokenBucket, ADebtIsWaitedOff) {
  TokenBucket bucket(100, 100, kBucketBegin);
  EXPECT_EQ(bucket.Until(100, kBucketBegin), absl::ZeroDuration());
  bucket.Charge(299);
  EXPECT_EQ(bucket.left(kBucketBegin), -199);
  EXPECT_EQ(bucket.Until(1, kBucketBegin), absl::Seconds(2));
  EXPECT_EQ(bucket.left(kBucketBegin + std::chrono::seconds(2)), 1);
  bucket.Charge(0.05);
  EXPECT_EQ(bucket.Until(1, kBucketBegin + std::chrono::seconds(2)), absl::Milliseconds(1));
  bucket.Charge(1e12);
  EXPECT_EQ(bucket.Until(1, kBucketBegin + std::chrono::seconds(2)), absl::Hours(24));
}

TEST(TokenBucket, ANewRateKeepsWhatIsLeft) {
  TokenBucket bucket(10, 10, kBucketBegin);
  bucket.Charge(10);
  const SteadyTime later = kBucketBegin + std::chrono::milliseconds(500);
  bucket.SetRate(1, 2, later);  // five were gained until now
  EXPECT_EQ(bucket.left(later), 2);
  bucket.Charge(2);
  EXPECT_EQ(bucket.left(later + std::chrono::seconds(1)), 1);
}

TEST(TokenBucket, OfNothingStaysEmpty) {
  TokenBucket bucket;
  EXPECT_EQ(bucket.left(kBucketBegin), 0);
  EXPECT_EQ(bucket.left(kBucketBegin + std::chrono::hours(1)), 0);
}

}  // namespace
}  // namespace ovq
