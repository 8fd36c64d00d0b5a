// Where the sessions of an S3-compatible object store are, as --session-store and its options say
// it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http_client/client_connection.h"

namespace ovq::s3 {

struct S3Address {
  std::string bucket = {};
  std::string prefix = {};  // of all keys, without '/' at its ends; maybe ""
  std::string region = "us-east-1";
  server::HttpOrigin endpoint = {};

  std::string Text() const;  // s3://BUCKET[/PREFIX]
  // The address for errors: with the endpoint.
  std::string Where() const;
};

// An access key. Nothing prints the secret.
struct S3Credentials {
  std::string key_id = {}, secret = {};
};

inline constexpr char kS3UrlForm[] = "s3://BUCKET[/PREFIX]";
inline constexpr char kS3EndpointForm[] = "http[s]://HOST[:PORT]";

// These parse kS3UrlForm (without region and endpoint), kS3EndpointForm and the name of a region.
// InvalidArgument says what was expected.
absl::StatusOr<S3Address> ParseS3Url(std::string_view url);
absl::StatusOr<server::HttpOrigin> ParseS3Endpoint(std::string_view url);
absl::StatusOr<std::string> ParseS3Region(std::string_view name);
// The endpoint of Amazon S3 in a region.
server::HttpOrigin AmazonEndpoint(const std::string& region);

// Parses a file of lines 'aws_access_key_id = ID' and 'aws_secret_access_key = SECRET', in any
// order, maybe after a line '[default]'; '#' begins a comment line. InvalidArgument names the line,
// never its value.
absl::StatusOr<S3Credentials> ParseS3Credentials(std::string_view text);

}  // namespace ovq::s3
