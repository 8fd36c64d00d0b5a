#include "server/http/browser_rules.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "server/engine/common/error_facts.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxEntries = 256;
constexpr size_t kMaxEntryBytes = 512;
constexpr char kPreflightSeconds[] = "3600";

std::string Lower(std::string_view text) { return absl::AsciiStrToLower(AbslView(text)); }

// The header's only value. Unset without any; "" if there are several.
std::optional<std::string> Header(const HttpRequest& request, std::string_view name) {
  std::optional<std::string> value;
  for (const auto& [key, text] : request.headers) {
    if (key == name) value = value ? "" : text;
  }
  return value;
}

// HOST[:PORT] without the port and the dot of the root, in lower case.
std::string HostName(std::string_view host) {
  const size_t port = host.find_last_not_of("0123456789");
  const bool named = port == std::string_view::npos || host[port] != ':';
  std::string name = Lower(named ? host : host.substr(0, port));
  if (name.ends_with('.')) name.pop_back();
  return name;
}

// Whether a name stands for this machine whoever looks it up. A page can have its own name point
// here (DNS rebinding), and the browser then takes the server for the page's own; but
// - localhost and names below it are reserved (RFC 6761, 6.3): nobody can register one, and
// browsers
//   do not look them up, so their pages are this machine's, whose other ports are other origins;
// - addresses are not looked up at all. Those of the loopback network and the unspecified one,
// which
//   the system takes for it, have their pages from this machine, too. 127.evil.example is a name.
bool IsThisMachine(const std::string& name) {
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  const bool bracketed = name.starts_with('[') && name.ends_with(']');
  boost::system::error_code error;
  const auto address =
      boost::asio::ip::make_address(bracketed ? name.substr(1, name.size() - 2) : name, error);
  if (error || address.is_v6() != bracketed) return false;
  return address.is_loopback() || address.is_unspecified();
}

bool Matches(const std::string& pattern, const std::string& name) {
  if (pattern == "*") return true;
  if (pattern.starts_with("*.")) return name.ends_with(pattern.substr(1));
  if (pattern.starts_with('.')) return name.ends_with(pattern) || name == pattern.substr(1);
  return name == pattern;
}

// The form in which browsers write an origin.
std::string OriginName(std::string_view text) {
  std::string origin = Lower(text);
  for (const auto& [scheme, port] : {std::pair("http://", ":80"), std::pair("https://", ":443")}) {
    if (origin.starts_with(scheme) && origin.ends_with(port)) {
      origin.erase(origin.size() - std::string_view(port).size());
    }
  }
  return origin;
}

bool AllowsOrigin(const BrowserRules& rules, const std::string& origin) {
  return std::ranges::any_of(rules.origins,
                             [name = OriginName(origin)](const std::string& allowed) {
                               return allowed == "*" || allowed == name;
                             });
}

// The log must not get the caller's text.
absl::Status Denied(const std::string& expected, const std::optional<std::string>& got) {
  return engine::WithLogText(absl::PermissionDeniedError(absl::StrCat(
                                 expected, ", got ", got ? Quoted(*got) : std::string("none"))),
                             expected);
}

absl::StatusOr<std::vector<std::string>> ParseList(
    absl::string_view text, const char* takes,
    const std::function<std::optional<std::string>(std::string_view)>& read) {
  std::vector<std::string> entries;
  if (text.empty()) return entries;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::string stripped(absl::StripAsciiWhitespace(entry));
    const std::optional<std::string> value =
        stripped.size() <= kMaxEntryBytes ? read(stripped) : std::nullopt;
    if (!value || entries.size() == kMaxEntries) {
      return absl::InvalidArgumentError(absl::StrCat("expected at most ", kMaxEntries, " ", takes,
                                                     " with commas between, got ",
                                                     Quoted(stripped)));
    }
    entries.push_back(*value);
  }
  return entries;
}

// Whether the text has letters, digits and these others only.
bool HasOnly(std::string_view text, std::string_view others) {
  return !text.empty() && std::ranges::all_of(text, [others](char c) {
    return absl::ascii_isalnum(c) || others.find(c) != std::string_view::npos;
  });
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseAllowedHosts(absl::string_view text) {
  return ParseList(text, "names of hosts, such as a.example, .b.example or *.c.example, or *",
                   [](std::string_view entry) -> std::optional<std::string> {
                     std::string name = HostName(entry);
                     std::string_view rest = name;
                     if (rest.starts_with("*.")) rest.remove_prefix(1);
                     if (name != "*" && !HasOnly(rest, ".-_[]:")) return std::nullopt;
                     return name;
                   });
}

absl::StatusOr<std::vector<std::string>> ParseAllowedOrigins(absl::string_view text) {
  return ParseList(text, "origins, such as https://chat.example or http://localhost:3000, or *",
                   [](std::string_view entry) -> std::optional<std::string> {
                     if (entry.ends_with('/')) entry.remove_suffix(1);
                     std::string origin = OriginName(entry);
                     const size_t scheme = origin.find("://");
                     if (origin == "*") return origin;
                     if (scheme == std::string::npos ||
                         !HasOnly(std::string_view(origin).substr(0, scheme), "+-.") ||
                         !HasOnly(std::string_view(origin).substr(scheme + 3), ".-_[]:")) {
                       return std::nullopt;
                     }
                     return origin;
                   });
}

absl::Status CheckBrowser(const BrowserRules& rules, const HttpRequest& request) {
  const std::optional<std::string> host = Header(request, "host");
  // Browsers always send a host; only HTTP/1.0 may leave it out.
  if (rules.check_host && host) {
    const std::string name = HostName(*host);
    const auto matches = [&name](const std::string& allowed) { return Matches(allowed, name); };
    if (!IsThisMachine(name) && std::ranges::none_of(rules.hosts, matches)) {
      return Denied("header host: expected localhost, or a name of --http-allowed-hosts", host);
    }
  }
  const std::optional<std::string> origin = Header(request, "origin");
  if (!origin || AllowsOrigin(rules, *origin)) return absl::OkStatus();
  for (const char* scheme : {"http://", "https://"}) {
    if (Lower(*origin) == Lower(scheme + host.value_or(""))) return absl::OkStatus();
  }
  return Denied("header origin: expected this server's own, or one of --http-allowed-origins",
                origin);
}

HttpHeaders PageHeaders(const BrowserRules& rules, const HttpRequest& request) {
  if (rules.origins.empty()) return {};
  // Caches must not give the answer for one origin to another.
  HttpHeaders headers = {{"Vary", "Origin"}};
  const std::optional<std::string> origin = Header(request, "origin");
  if (!origin || !AllowsOrigin(rules, *origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", *origin);
  headers.emplace_back("Access-Control-Expose-Headers", "*");
  return headers;
}

HttpHeaders OptionsHeaders(const BrowserRules& rules, const HttpRequest& request,
                           const std::string& allow) {
  HttpHeaders headers = {{"Allow", allow}};
  const std::optional<std::string> origin = Header(request, "origin");
  if (!origin || !AllowsOrigin(rules, *origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Methods", allow);
  // An allowed page may send any header: clients have many of their own (x-stainless-...).
  if (const auto asked = Header(request, "access-control-request-headers")) {
    headers.emplace_back("Access-Control-Allow-Headers", *asked);
  }
  headers.emplace_back("Access-Control-Max-Age", kPreflightSeconds);
  // Chrome asks before a page of the internet reaches a private network.
  if (Header(request, "access-control-request-private-network") == "true") {
    headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  return headers;
}

}  // namespace ovq::server
