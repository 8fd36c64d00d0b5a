#include "server/apis/http_api.h"

#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/apis/http_handlers.h"
#include "server/calls/handlers.h"
#include "server/engine/common/error_facts.h"
#include "server/http/console_page.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

struct Route {
  const char* method;
  const char* pattern;  // {} stands for one word of the path, {*} for the rest of it
  HttpHandler* handler;
  Lane lane = Lane::kWork;
  const char* shared_label = nullptr;  // of several patterns; null: the pattern
  // Its query's parameters. Clients of the other APIs may send others, such as ?beta=true.
  std::array<const char*, 3> query = {};

  bool is_own() const { return std::string_view(pattern).starts_with("/ovq/"); }
  const char* label() const { return shared_label != nullptr ? shared_label : pattern; }
};

constexpr std::array kRoutes = {
    Route{"GET", "/v1/models", &ServeModels, Lane::kQuick},
    Route{"GET", "/v1/models/{*}", &ServeModels, Lane::kQuick, "/v1/models"},
    Route{"POST", "/v1/completions", &ServeCompletions},
    Route{"POST", "/v1/chat/completions", &ServeChat},
    Route{"POST", "/v1/messages", &ServeMessages},
    Route{"POST", "/v1/messages/count_tokens", &ServeCountTokens},
    Route{"POST", "/v1/responses", &ServeResponses},
    Route{"GET", "/v1/responses/{}", &ServeResponse, Lane::kQuick},
    Route{"GET", "/v1/responses/{}/input_items", &ServeResponseInput, Lane::kQuick},
    Route{"DELETE", "/v1/responses/{}", &ServeResponseDelete},
    Route{"POST", "/tokenize", &ServeTokenize},
    Route{"POST", "/detokenize", &ServeDetokenize},
    Route{"GET",
          "/ovq/v1/info",
          &ServeInfo,
          Lane::kQuick,
          nullptr,
          {"positions", "max_centroids", "memory"}},
    Route{"GET", "/ovq/v1/status", &ServeStatus, Lane::kQuick},
    Route{"GET",
          "/ovq/v1/sessions",
          &ServeSessions,
          Lane::kQuick,
          nullptr,
          {"page_size", "page_token"}},
    Route{"POST", "/ovq/v1/sessions", &ServeCreate},
    Route{"GET", "/ovq/v1/sessions/{}", &ServeSession, Lane::kQuick},
    Route{"DELETE", "/ovq/v1/sessions/{}", &ServeDelete},
    Route{"POST", "/ovq/v1/sessions/{}/fork", &ServeFork},
    Route{"POST", "/ovq/v1/sessions/{}/rewind", &ServeRewind},
    Route{"POST", "/ovq/v1/sessions/{}/generate", &ServeGenerate},
    Route{"POST", "/ovq/v1/generate", &ServeGenerate},
};

// Labels of the paths that need no token, and of paths that are not served.
constexpr const char* kConsoleLabel = "/";  // and the console's other files
constexpr const char* kHealthLabel = "/health";
constexpr const char* kVersionLabel = "/version";
constexpr const char* kOtherLabel = "other";

constexpr std::string_view kEveryPath = "*";  // target of OPTIONS for the server as a whole

// The path's words in place of the pattern's {}; unset if the path does not match.
std::optional<std::vector<std::string>> Match(std::string_view pattern, std::string_view path) {
  const std::vector<std::string> parts = absl::StrSplit(AbslView(pattern), '/');
  std::vector<std::string> given = absl::StrSplit(AbslView(path), '/');
  if (parts.back() == "{*}" && given.size() > parts.size()) {
    const auto rest = given.begin() + std::ssize(parts) - 1;
    *rest = absl::StrJoin(rest, given.end(), "/");
    given.resize(parts.size());
  }
  if (parts.size() != given.size()) return std::nullopt;
  std::vector<std::string> words;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == "{}" || parts[i] == "{*}") {
      words.push_back(DecodeUrl(given[i], /*plus_is_space=*/false));
    } else if (parts[i] != given[i]) {
      return std::nullopt;
    }
  }
  return words;
}

// The target with one slash between the words of its path, and none behind them: clients put a base
// URL with a slash at its end before paths that begin with one.
std::string WithSingleSlashes(const std::string& target) {
  const size_t mark = std::min(target.find('?'), target.size());
  std::string path;
  for (const char c : std::string_view(target).substr(0, mark)) {
    if (c != '/' || !path.ends_with('/')) path.push_back(c);
  }
  if (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path + target.substr(mark);
}

// A route of GET accepts HEAD, too.
bool AcceptsMethod(const Route& route, const std::string& method) {
  return method == route.method || (method == "HEAD" && route.method == std::string_view("GET"));
}

struct Found {
  const Route* route = nullptr;
  std::vector<std::string> words;
  std::string allow;  // the methods that the path has: "GET, HEAD, OPTIONS"; empty: no such path
};
Found Find(const std::string& method, std::string_view path) {
  Found found;
  std::set<std::string_view> methods;
  for (const Route& route : kRoutes) {
    std::optional<std::vector<std::string>> words = Match(route.pattern, path);
    if (!words && path != kEveryPath) continue;
    methods.insert(route.method);
    if (AcceptsMethod(route, "HEAD")) methods.insert("HEAD");
    if (!words || !AcceptsMethod(route, method)) continue;
    found.route = &route;
    found.words = *std::move(words);
  }
  if (methods.empty()) return found;
  methods.insert("OPTIONS");
  for (const std::string_view name : methods) {
    absl::StrAppend(&found.allow, found.allow.empty() ? "" : ", ", AbslView(name));
  }
  return found;
}

absl::Status NoSuchPath(const std::string& path) {
  const std::string expected = "path: expected one that docs/http.md lists";
  return engine::WithLogText(
      NotFound(absl::StrCat(expected, ", got ", Quoted(path)), "path", nullptr), expected);
}

}  // namespace

std::vector<const char*> HttpRouteLabels() {
  std::set<std::string_view> known;
  std::vector<const char*> labels;
  const auto add = [&](const char* label) {
    if (known.insert(label).second) labels.push_back(label);
  };
  for (const Route& route : kRoutes) add(route.label());
  for (const char* label : {kConsoleLabel, kHealthLabel, kVersionLabel, kOtherLabel}) add(label);
  return labels;
}

HttpApi::HttpApi(ServiceContext& services, BrowserRules rules)
    : services_(services), rules_(std::move(rules)) {}

absl::Status HttpApi::Listen(HttpOptions options) {
  Metrics& metrics = services_.metrics;
  options.memory = services_.engine.options().request_memory;
  options.host_time = services_.engine.options().host_time;
  ASSIGN_OR_RETURN(
      server_,
      HttpServer::Start(
          options,
          {.connections = [&metrics](int open) { metrics.http_connections.Set(open); },
           .refused = [&metrics](const char* why) { metrics.http_refusals.at(why)->Increment(); },
           .bytes = [&metrics](size_t received,
                               size_t sent) { metrics.HttpBytes(received, sent); }},
          [this](std::shared_ptr<Exchange> exchange) { Handle(std::move(exchange)); }));
  return absl::OkStatus();
}

void HttpApi::Handle(std::shared_ptr<Exchange> exchange) {
  const std::string method = exchange->request().method;
  std::string& target = exchange->request().target;
  target = WithSingleSlashes(target);
  const std::string path = target.substr(0, target.find('?'));
  const bool health = path == kHealthLabel, version = path == kVersionLabel;
  Found found = Find(method, path);
  std::optional<HttpReply> console = ConsoleReply(exchange->request());
  const bool open = health || version || console;  // needs no token, is not charged to a tenant
  if (open) found.allow = "GET, HEAD, OPTIONS";
  const char* const label = health        ? kHealthLabel
                            : version     ? kVersionLabel
                            : console     ? kConsoleLabel
                            : found.route ? found.route->label()
                                          : kOtherLabel;
  HttpHeaders headers = PageHeaders(rules_, exchange->request());
  const auto call =
      std::make_shared<HttpCall>(services_, label, std::move(exchange), std::move(headers),
                                 health ? CallRecord::Shown::kNo : CallRecord::Shown::kYes);
  if (absl::Status fault = call->exchange().fault(); !fault.ok()) return call->Fail(fault);
  if (found.allow.empty()) return call->Fail(NoSuchPath(path));
  const bool get = method == "GET" || method == "HEAD";
  if (open && get) {
    if (console) return call->Reply(*std::move(console));
    if (version) return call->Reply(200, Dump({{"version", OVQ_VERSION}}));
    if (ready_ && !services_.draining()) return call->Reply(200, "", "");
    return call->Fail(absl::UnavailableError("the server is draining, or a step hangs"));
  }
  if (absl::Status status = CheckBrowser(rules_, call->request()); !status.ok()) {
    return call->Fail(status);
  }
  if (method == "OPTIONS") {
    return call->Reply({.status = 204,
                        .content_type = "",
                        .headers = OptionsHeaders(rules_, call->request(), found.allow)});
  }
  if (found.route == nullptr) return call->Fail(MethodNotAllowed(found.allow));
  if (absl::Status status = call->record().Admit(); !status.ok()) return call->Fail(status);
  call->exchange().SetPayer(call->record().client());
  WorkQueue& queue = found.route->lane == Lane::kQuick ? services_.quick : services_.blocking;
  call->record().Begin(
      queue, call->request().body.size(),
      [call, route = found.route, words = std::move(found.words)](absl::Status status) {
        if (status.ok() && route->is_own()) status = call->CheckQuery(route->query);
        if (status.ok()) status = route->handler(call, words);
        if (!status.ok()) call->Fail(status);
      });
}

}  // namespace ovq::server
