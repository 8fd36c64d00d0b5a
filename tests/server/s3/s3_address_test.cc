#include "server/s3/s3_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ovq::s3 {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(S3Address, ReadsWhatItWrites) {
  for (const std::string url : {"s3://my-bucket", "s3://a.b-c/x", "s3://abc/x/y_z.1"}) {
    const absl::StatusOr<S3Address> address = ParseS3Url(url);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->Text(), url);
  }
  EXPECT_EQ(ParseS3Url("s3://abc/").value().Text(), "s3://abc");
  EXPECT_EQ(ParseS3Url("s3://abc/x/").value().prefix, "x");
}

TEST(S3Address, NamesWhatItExpects) {
  for (const std::string url :
       {"", "abc", "https://abc", "s3://", "s3://ab", "s3://-abc", "s3://a b c", "s3://abc//x",
        "s3://abc/..", "s3://abc/x//y", "s3://abc/ä", "s3://abc\n", "s3:///x"}) {
    const absl::Status status = ParseS3Url(url).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << url;
    EXPECT_THAT(status.message(), HasSubstr("expected s3://BUCKET[/PREFIX]")) << url;
  }
  EXPECT_FALSE(ParseS3Url("s3://" + std::string(64, 'a')).ok());
  EXPECT_FALSE(ParseS3Url("s3://abc/" + std::string(513, 'a')).ok());
  EXPECT_THAT(ParseS3Url("s3://key:hunter2@abc").status().message(), Not(HasSubstr("hunter2")));
}

TEST(S3Address, ReadsEndpoints) {
  const auto text = [](const std::string& url) { return ParseS3Endpoint(url).value().Url(); };
  EXPECT_EQ(text("https://store.example"), "https://store.example");
  EXPECT_EQ(text("https://store.example:443/"), "https://store.example");
  EXPECT_EQ(text("http://10.0.0.7:9000"), "http://10.0.0.7:9000");
  EXPECT_EQ(text("http://[::1]:9000"), "http://[::1]:9000");
  EXPECT_EQ(ParseS3Endpoint("http://h").value().port, 80);
  EXPECT_TRUE(AmazonEndpoint("eu-west-1").tls);
  EXPECT_EQ(AmazonEndpoint("eu-west-1").Url(), "https://s3.eu-west-1.amazonaws.com");
  for (const std::string url :
       {"", "store", "ftp://h", "https://", "http://h:", "http://h:0", "http://h:65536",
        "http://h:x", "http://h/path", "http://[::1", "http://[::1]x", "http://u:hunter2@h",
        "http://h?a", "http://a b"}) {
    const absl::Status status = ParseS3Endpoint(url).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << url;
    EXPECT_THAT(status.message(), HasSubstr("expected http[s]://HOST[:PORT], got ")) << url;
    EXPECT_THAT(status.message(), Not(HasSubstr("hunter2"))) << url;
  }
}

TEST(S3Address, ReadsRegions) {
  EXPECT_EQ(ParseS3Region("eu-west-1").value(), "eu-west-1");
  for (const std::string name : {"", "a b", "a/b", "a\n"}) EXPECT_FALSE(ParseS3Region(name).ok());
}

TEST(S3Address, ReadsCredentials) {
  const absl::StatusOr<S3Credentials> found = ParseS3Credentials(
      "# of the sessions\n[default]\r\naws_secret_access_key = se/c=ret\naws_access_key_id=ID\n");
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->key_id, "ID");
  EXPECT_EQ(found->secret, "se/c=ret");
  for (const auto& [text, got] : std::vector<std::pair<std::string, std::string>>{
           {"", "got no aws_access_key_id"},
           {"aws_access_key_id = ID", "got no aws_secret_access_key"},
           {"aws_access_key_id = ID\naws_access_key_id = ID", "aws_access_key_id twice"},
           {"aws_secret_access_key = hun ter2", "no such value in line 1"},
           {"aws_secret_access_key =", "no such value in line 1"},
           {"\n[other]", "something else in line 2"},
           {"aws_session_token = hunter2", "something else in line 1"},
           {"hunter2", "something else in line 1"}}) {
    const absl::Status status = ParseS3Credentials(text).status();
    EXPECT_THAT(status.message(), HasSubstr(got));
    EXPECT_THAT(status.message(), Not(HasSubstr("ter2")));
  }
}

}  // namespace
}  // namespace ovq::s3
