#include "server/redis/redis_address.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/text.h"

namespace ovq::redis {
namespace {

constexpr size_t kLongestUrl = 1024;
constexpr int kMostDatabases = 1 << 16;

absl::Status BadUrl(const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", kRedisUrlForm, ", got ", why));
}

// Part of a URL as an error shows it: not at all where it may hold a password.
std::string Shown(absl::string_view text) {
  if (text.find_first_of("@?") != absl::string_view::npos) return "something with '@' or '?'";
  return absl::StrCat("'", text, "'");
}

// Reads a whole number from 0 to `most`.
bool ReadNumber(absl::string_view text, int most, int& number) {
  const bool digits = !text.empty() && std::ranges::all_of(text, absl::ascii_isdigit);
  return digits && absl::SimpleAtoi(text, &number) && number <= most;
}

// Splits HOST[:PORT], where HOST may be [IPV6].
bool ReadHost(absl::string_view text, RedisAddress& address) {
  absl::string_view host = text, port;
  if (absl::ConsumePrefix(&host, "[")) {
    const size_t end = host.find(']');
    if (end == absl::string_view::npos) return false;
    port = host.substr(end + 1);
    host = host.substr(0, end);
    if (!port.empty() && !absl::ConsumePrefix(&port, ":")) return false;
  } else if (const size_t colon = host.find(':'); colon != absl::string_view::npos) {
    port = host.substr(colon + 1);
    host = host.substr(0, colon);
    if (port.empty()) return false;
  }
  address.host = std::string(host);
  const auto fits = [](char c) {
    return absl::ascii_isalnum(c) || absl::string_view(".:-_%").find(c) != absl::string_view::npos;
  };
  if (host.empty() || !std::ranges::all_of(host, fits)) return false;
  return port.empty() || (ReadNumber(port, 65535, address.port) && address.port > 0);
}

}  // namespace

std::string RedisAddress::Text() const {
  return absl::StrCat(tls ? "rediss://" : "redis://", user, user.empty() ? "" : "@",
                      server::HostPort(host, port), "/", database);
}

absl::StatusOr<RedisAddress> ParseRedisUrl(std::string_view url) {
  absl::string_view rest = AbslView(url);
  if (rest.size() > kLongestUrl) return BadUrl(absl::StrCat(rest.size(), " bytes"));
  RedisAddress address;
  if (absl::ConsumePrefix(&rest, "rediss://")) {
    address.tls.emplace();
  } else if (!absl::ConsumePrefix(&rest, "redis://")) {
    return BadUrl(Shown(rest));
  }
  if (const size_t at = rest.rfind('@'); at != absl::string_view::npos) {
    const absl::string_view user = rest.substr(0, at);
    if (user.find(':') != absl::string_view::npos) {
      return BadUrl(
          "a password in it, which lists of processes show; use "
          "--session-store-password-file");
    }
    const auto fits = [](char c) { return absl::ascii_isgraph(c) && c != '/' && c != '@'; };
    if (user.empty() || !std::ranges::all_of(user, fits)) return BadUrl("no such user name");
    address.user = std::string(user);
    rest.remove_prefix(at + 1);
  }
  const size_t slash = rest.find('/');
  if (!ReadHost(rest.substr(0, slash), address)) return BadUrl(Shown(AbslView(url)));
  if (slash == absl::string_view::npos || rest.substr(slash) == "/") return address;
  if (!ReadNumber(rest.substr(slash + 1), kMostDatabases, address.database)) {
    return BadUrl(absl::StrCat("the database ", Shown(rest.substr(slash + 1))));
  }
  return address;
}

}  // namespace ovq::redis
