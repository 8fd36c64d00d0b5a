#include "server/redis/redis_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ovq::redis {
namespace {

using testing::HasSubstr;

TEST(RedisAddress, ReadsWhatItWrites) {
  for (const std::string url : {"redis://cache:6379/0", "redis://ann@10.0.0.7:7000/15",
                                "redis://[::1]:6380/3", "rediss://ann@cache:6379/0"}) {
    const absl::StatusOr<RedisAddress> address = ParseRedisUrl(url);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), url);
  }
  const RedisAddress ann = ParseRedisUrl("redis://ann@10.0.0.7:7000/15").value();
  EXPECT_EQ(ann.user, "ann");
  EXPECT_EQ(ann.host, "10.0.0.7");
  EXPECT_EQ(ann.port, 7000);
  EXPECT_EQ(ann.database, 15);
  EXPECT_EQ(ParseRedisUrl("redis://cache").value().Text(), "redis://cache:6379/0");
  EXPECT_EQ(ParseRedisUrl("redis://cache/").value().Text(), "redis://cache:6379/0");
  EXPECT_FALSE(ann.tls);
  EXPECT_TRUE(ParseRedisUrl("rediss://cache").value().tls);
}

TEST(RedisAddress, NamesWhatItExpects) {
  for (const std::string url :
       {"", "cache:6379", "http://cache", "redis://", "rediss://", "redis://:6379",
        "redis://cache:", "redis://a b", "redis://cache:0", "redis://cache:65536",
        "redis://cache:x", "redis://cache/x", "redis://cache/-1", "redis://cache/70000",
        "redis://[::1", "redis://[::1]6379", "redis://@h", "redis://a/b@h", "redis://ca\nche"}) {
    const absl::Status status = ParseRedisUrl(url).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << url;
    EXPECT_THAT(status.message(), HasSubstr("expected redis[s]://[USER@]HOST[:PORT][/DB], got "));
  }
  EXPECT_FALSE(ParseRedisUrl("redis://" + std::string(5000, 'a')).ok());
}

TEST(RedisAddress, APasswordIsNotRepeated) {
  const absl::Status status = ParseRedisUrl("redis://ann:hunter2@cache").status();
  EXPECT_THAT(status.message(), HasSubstr("--session-store-password-file"));
  EXPECT_THAT(status.message(), testing::Not(HasSubstr("hunter2")));
  for (const std::string url :
       {"http://ann:hunter2@cache", "ann:hunter2@cache", "redis://cache/0?password=hunter2",
        "redis://cache?password=hunter2", "redis://ann@cache?password=hunter2"}) {
    const absl::Status other = ParseRedisUrl(url).status();
    EXPECT_TRUE(absl::IsInvalidArgument(other)) << url;
    EXPECT_THAT(other.message(), testing::Not(HasSubstr("hunter2")));
  }
}

}  // namespace
}  // namespace ovq::redis
