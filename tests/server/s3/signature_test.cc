#include "server/s3/signature.h"

#include <gtest/gtest.h>

namespace ovq::s3 {
namespace {

// The examples of Amazon's page "Signature Calculations for the Authorization Header".
constexpr char kHost[] = "examplebucket.s3.amazonaws.com";
constexpr char kNoBody[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

std::string PublishedSignature(RequestToSign request) {
  const S3Credentials credentials = {"AKIAIOSFODNN7EXAMPLE",
                                     "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  const absl::Time now = absl::FromCivil(absl::CivilDay(2013, 5, 24), absl::UTCTimeZone());
  request.headers["host"] = kHost;
  request.headers["x-amz-date"] = AmazonDate(now);
  request.headers["x-amz-content-sha256"] = request.body_digest;
  const std::string header = Authorization(request, credentials, "us-east-1", now);
  const std::string begin =
      "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,";
  EXPECT_EQ(header.substr(0, begin.size()), begin);
  const std::string name = "Signature=";
  return header.substr(header.find(name) + name.size());
}

TEST(Signature, IsTheOneOfThePublishedExamples) {
  EXPECT_EQ(Sha256Hex(""), kNoBody);
  EXPECT_EQ(PublishedSignature({.method = "GET",
                                .path = "/test.txt",
                                .headers = {{"range", "bytes=0-9"}},
                                .body_digest = kNoBody}),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(PublishedSignature({.method = "PUT",
                                .path = "/test$file.text",
                                .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                            {"x-amz-storage-class", "REDUCED_REDUNDANCY"}},
                                .body_digest = Sha256Hex("Welcome to Amazon S3.")}),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  EXPECT_EQ(
      PublishedSignature(
          {.method = "GET", .path = "/", .query = {{"lifecycle", ""}}, .body_digest = kNoBody}),
      "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  EXPECT_EQ(PublishedSignature({.method = "GET",
                                .path = "/",
                                .query = {{"prefix", "J"}, {"max-keys", "2"}},
                                .body_digest = kNoBody}),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Signature, EncodesAsTheRulesSay) {
  EXPECT_EQ(UriEncode("/a b~c/\xc3\xa4+=", false), "/a%20b~c/%C3%A4%2B%3D");
  EXPECT_EQ(UriEncode("a/b", true), "a%2Fb");
  EXPECT_EQ(EncodeQuery({{"b", "2/"}, {"a", ""}}), "a=&b=2%2F");
}

}  // namespace
}  // namespace ovq::s3
