// Which names the HTTP front answers to, and which pages of other origins may use it: what stands
// between the pages that a browser has open and a server that it can reach.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/http/exchange.h"

namespace ovq::server {

// All texts are in lower case.
struct BrowserRules {
  bool check_host = false;              // whether requests must name this machine or one of `hosts`
  std::vector<std::string> hosts = {};  // "NAME"; ".NAME": it and what ends so; "*.NAME"; "*": any
  std::vector<std::string> origins = {};  // "SCHEME://HOST[:PORT]"; "*": any
};

// The values of --http-allowed-hosts and --http-allowed-origins: commas between, ports of hosts and
// default ports of origins left out; '' is an empty list. InvalidArgument names the entry.
absl::StatusOr<std::vector<std::string>> ParseAllowedHosts(absl::string_view text);
absl::StatusOr<std::vector<std::string>> ParseAllowedOrigins(absl::string_view text);

// PermissionDenied for a request whose header `host` is none of the server's names, or which a page
// of an origin sends that is neither the server's own nor allowed.
absl::Status CheckBrowser(const BrowserRules& rules, const HttpRequest& request);
// Headers that every answer to the request has, so that pages of allowed origins may read it
// (CORS).
HttpHeaders PageHeaders(const BrowserRules& rules, const HttpRequest& request);
// Further headers of the answer to OPTIONS. allow: the methods of the path, "GET, HEAD, OPTIONS".
HttpHeaders OptionsHeaders(const BrowserRules& rules, const HttpRequest& request,
                           const std::string& allow);

}  // namespace ovq::server
