// Signs requests as Amazon's Signature Version 4 says.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/s3/s3_address.h"

namespace ovq::s3 {

using Query = std::vector<std::pair<std::string, std::string>>;  // not encoded

struct RequestToSign {
  std::string method;
  std::string path;  // not encoded
  Query query = {};
  std::map<std::string, std::string> headers = {};  // by name in lower case; all are signed
  std::string body_digest;                          // SHA-256 of the body, hexadecimal
};

// Percent-encodes all but A-Z a-z 0-9 - . _ ~, and '/' unless encode_slash.
std::string UriEncode(std::string_view text, bool encode_slash);
// The query as it is signed and sent: encoded and sorted.
std::string EncodeQuery(const Query& query);
// The header x-amz-date, which the headers must have.
std::string AmazonDate(absl::Time now);
// The header Authorization.
std::string Authorization(const RequestToSign& request, const S3Credentials& credentials,
                          const std::string& region, absl::Time now);
std::string Sha256Hex(std::string_view bytes);

}  // namespace ovq::s3
