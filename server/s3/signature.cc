#include "server/s3/signature.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/sha256.h"
#include "base/text.h"

namespace ovq::s3 {
namespace {

std::string Hmac(const std::string& key, const std::string& text) {
  unsigned char code[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), code, &size);
  return std::string(reinterpret_cast<const char*>(code), size);
}

}  // namespace

std::string UriEncode(std::string_view text, bool encode_slash) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = absl::ascii_isalnum(c) ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       (c == '/' && !encode_slash);
    if (plain) {
      encoded.push_back(c);
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

std::string EncodeQuery(const Query& query) {
  std::vector<std::pair<std::string, std::string>> encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(UriEncode(name, true), UriEncode(value, true));
  }
  std::ranges::sort(encoded);
  return absl::StrJoin(encoded, "&", absl::PairFormatter("="));
}

std::string AmazonDate(absl::Time now) {
  return absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone());
}

std::string Sha256Hex(std::string_view bytes) {
  Sha256 digest;
  digest.Add(bytes.data(), bytes.size());
  return digest.Hex();
}

std::string Authorization(const RequestToSign& request, const S3Credentials& credentials,
                          const std::string& region, absl::Time now) {
  std::string headers;
  std::vector<std::string> names;
  for (const auto& [name, value] : request.headers) {
    absl::StrAppend(&headers, name, ":", std::string(absl::StripAsciiWhitespace(AbslView(value))),
                    "\n");
    names.push_back(name);
  }
  const std::string signed_headers = absl::StrJoin(names, ";");
  const std::string canonical = absl::StrCat(
      request.method, "\n", UriEncode(request.path, /*encode_slash=*/false), "\n",
      EncodeQuery(request.query), "\n", headers, "\n", signed_headers, "\n", request.body_digest);
  const std::string date = AmazonDate(now), day = date.substr(0, 8);
  const std::string scope = absl::StrCat(day, "/", region, "/s3/aws4_request");
  const std::string to_sign =
      absl::StrCat("AWS4-HMAC-SHA256\n", date, "\n", scope, "\n", Sha256Hex(canonical));
  const std::string day_key = Hmac(absl::StrCat("AWS4", credentials.secret), day);
  const std::string key = Hmac(Hmac(Hmac(day_key, region), "s3"), "aws4_request");
  return absl::StrCat("AWS4-HMAC-SHA256 Credential=", credentials.key_id, "/", scope,
                      ",SignedHeaders=", signed_headers,
                      ",Signature=", absl::BytesToHexString(Hmac(key, to_sign)));
}

}  // namespace ovq::s3
