#include "server/s3/s3_address.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace ovq::s3 {
namespace {

constexpr size_t kLongestHost = 253, kLongestRegion = 64, kLongestPrefix = 512;
constexpr size_t kShortestBucket = 3, kLongestBucket = 63;

bool IsAlnumOr(absl::string_view text, absl::string_view others) {
  return std::ranges::all_of(text, [others](char c) {
    return absl::ascii_isalnum(c) || others.find(c) != absl::string_view::npos;
  });
}

// Text as an error shows it: not at all where it may hold a secret.
std::string Shown(absl::string_view text) {
  if (text.find_first_of("@?") != absl::string_view::npos) return "something with '@' or '?'";
  return Quoted({text.data(), text.size()});
}

absl::Status Expected(absl::string_view what, const std::string& got) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", what, ", got ", got));
}

}  // namespace

std::string S3Address::Text() const {
  return absl::StrCat("s3://", bucket, prefix.empty() ? "" : "/", prefix);
}

std::string S3Address::Where() const { return absl::StrCat(Text(), " at ", endpoint.Url()); }

absl::StatusOr<S3Address> ParseS3Url(std::string_view url) {
  absl::string_view rest = AbslView(url);
  if (!absl::ConsumePrefix(&rest, "s3://")) return Expected(kS3UrlForm, Shown(rest));
  const size_t slash = std::min(rest.find('/'), rest.size());
  const absl::string_view bucket = rest.substr(0, slash);
  const bool fits = bucket.size() >= kShortestBucket && bucket.size() <= kLongestBucket &&
                    IsAlnumOr(bucket, ".-_") && absl::ascii_isalnum(bucket.front()) &&
                    absl::ascii_isalnum(bucket.back());
  if (!fits) return Expected(kS3UrlForm, absl::StrCat("the bucket ", Shown(bucket)));
  absl::string_view prefix = rest.substr(slash);
  absl::ConsumePrefix(&prefix, "/");
  absl::ConsumeSuffix(&prefix, "/");
  for (const absl::string_view part : absl::StrSplit(prefix, '/')) {
    const bool dots = part == "." || part == "..";
    if (prefix.empty()) break;
    if (part.empty() || dots || prefix.size() > kLongestPrefix || !IsAlnumOr(part, ".-_")) {
      return Expected(absl::StrCat(kS3UrlForm, " with parts A-Z a-z 0-9 . - _ of the prefix, ",
                                   kLongestPrefix, " bytes in all"),
                      absl::StrCat("the prefix ", Shown(prefix)));
    }
  }
  return S3Address{.bucket = std::string(bucket), .prefix = std::string(prefix)};
}

absl::StatusOr<server::HttpOrigin> ParseS3Endpoint(std::string_view url) {
  absl::string_view rest = AbslView(url);
  server::HttpOrigin origin;
  origin.tls = absl::ConsumePrefix(&rest, "https://");
  if (!origin.tls && !absl::ConsumePrefix(&rest, "http://")) {
    return Expected(kS3EndpointForm, Shown(rest));
  }
  absl::ConsumeSuffix(&rest, "/");
  absl::string_view host = rest, port = origin.tls ? "443" : "80";
  const bool v6 = absl::ConsumePrefix(&host, "[");
  const size_t end = v6 ? host.find(']') : host.find(':');
  if (v6 && end == absl::string_view::npos) return Expected(kS3EndpointForm, Shown(rest));
  if (end != absl::string_view::npos) {
    absl::string_view behind = host.substr(v6 ? end + 1 : end);
    host = host.substr(0, end);
    if (absl::ConsumePrefix(&behind, ":")) {
      port = behind;
    } else if (!behind.empty()) {
      return Expected(kS3EndpointForm, Shown(rest));
    }
  }
  const bool digits = !port.empty() && std::ranges::all_of(port, absl::ascii_isdigit);
  const bool good_port =
      digits && absl::SimpleAtoi(port, &origin.port) && origin.port > 0 && origin.port <= 65535;
  if (host.empty() || host.size() > kLongestHost || !IsAlnumOr(host, v6 ? ":.%" : ".-_") ||
      !good_port) {
    return Expected(kS3EndpointForm, Shown(rest));
  }
  origin.host = std::string(host);
  return origin;
}

absl::StatusOr<std::string> ParseS3Region(std::string_view name) {
  const absl::string_view text = AbslView(name);
  if (text.empty() || text.size() > kLongestRegion || !IsAlnumOr(text, "-")) {
    return Expected("the name of a region such as us-east-1", Shown(text));
  }
  return std::string(name);
}

server::HttpOrigin AmazonEndpoint(const std::string& region) {
  return {.tls = true, .host = absl::StrCat("s3.", region, ".amazonaws.com"), .port = 443};
}

absl::StatusOr<S3Credentials> ParseS3Credentials(std::string_view text) {
  constexpr char kForm[] = "lines 'aws_access_key_id = ID' and 'aws_secret_access_key = SECRET'";
  S3Credentials found;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(AbslView(text), '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#' || line == "[default]") continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(parts.first);
    const absl::string_view value = absl::StripAsciiWhitespace(parts.second);
    std::string* const to = name == "aws_access_key_id"       ? &found.key_id
                            : name == "aws_secret_access_key" ? &found.secret
                                                              : nullptr;
    if (to == nullptr) {
      return Expected(kForm, absl::StrCat("something else in line ", number));
    }
    if (!to->empty()) return Expected(kForm, absl::StrCat(std::string(name), " twice"));
    if (value.empty() || !std::ranges::all_of(value, absl::ascii_isgraph)) {
      return Expected(kForm, absl::StrCat("no such value in line ", number));
    }
    *to = std::string(value);
  }
  if (found.key_id.empty() || found.secret.empty()) {
    return Expected(kForm,
                    found.key_id.empty() ? "no aws_access_key_id" : "no aws_secret_access_key");
  }
  return found;
}

}  // namespace ovq::s3
