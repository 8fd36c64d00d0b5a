// Fuzzes every path of the HTTP front end with arbitrary bodies, several requests separated by a
// byte 0, through a whole server on a trivial model. Every answer is JSON, or events that are JSON,
// with a status that docs/http.md lists, and leaves nothing behind.
#include <algorithm>
#include <array>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "tests/fuzz/bytes.h"
#include "tests/fuzz/whole_server.h"
#include "tests/server/http/fake_exchange.h"

namespace ovq::fuzz {
namespace {

using Json = nlohmann::json;

struct Target {
  const char* path;  // {}: a session's id, {r}: the last response's, or a plausible one
  const char* method = "POST";
  server::HttpHeaders headers = {};
};
const std::array kTargets = {
    Target{"/v1/completions"},
    Target{"/v1/chat/completions"},
    Target{"/v1/responses"},
    Target{"/tokenize"},
    Target{"/detokenize"},
    Target{"/ovq/v1/generate"},
    Target{"/ovq/v1/sessions"},
    Target{"/ovq/v1/sessions/{}/fork"},
    Target{"/ovq/v1/sessions/{}/rewind"},
    Target{"/ovq/v1/sessions/{}/generate"},
    Target{"/v1/responses/{r}", "GET"},
    Target{"/v1/responses/{r}", "DELETE"},
    Target{"/v1/responses/resp_{}", "GET"},
    Target{"/v1/models", "GET"},
    Target{"/v1/models/fa%6be", "HEAD"},
    Target{"/ovq/v1/info", "GET"},
    Target{"/ovq/v1/status", "GET"},
    Target{"/ovq/v1/sessions?page_size=1", "GET"},
    Target{"/ovq/v1/sessions/{}", "GET"},
    Target{"/ovq/v1/sessions/{}", "DELETE"},
    Target{"/v1/responses", "POST", {{"ovq-session", "a.b"}}},
    Target{"/v1/responses", "POST", {{"ovq-session", "key"}}},
    Target{"/ovq/v1/sessions", "POST", {{"ovq-tenant", "other"}, {"ovq-session", "key"}}},
    Target{"/v1/completions", "POST", {{"origin", "http://elsewhere"}}},
    Target{"/v1/completions", "POST", {{"origin", "http://localhost"}}},
    Target{"/v1/completions", "PUT"},
    Target{"/nowhere"},
    Target{"/health", "GET"},
    Target{"/version", "POST"},
    Target{"/version", "GET"},
    Target{"/", "GET"},
    Target{"/v1/messages"},
    Target{"/v1/messages/count_tokens"},
};
constexpr absl::Duration kPatience = absl::Milliseconds(300);

// Statuses about the server's own state are excluded: it is healthy and has no other load.
bool IsDocumented(int status) {
  constexpr std::array kStatuses = {200, 400, 403, 404, 405, 409, 413, 415, 429};
  return std::find(kStatuses.begin(), kStatuses.end(), status) != kStatuses.end();
}

Json Parsed(const std::string& text) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  Check(!json.is_discarded(), "an answer is JSON");
  return json;
}

void CheckEvents(const std::string& body) {
  for (absl::string_view event : absl::StrSplit(body, "\n\n", absl::SkipEmpty())) {
    const size_t data = event.find("data: ");
    Check(data != absl::string_view::npos, "an event has data");
    const std::string text(event.substr(data + 6));
    if (text != "[DONE]") Parsed(text);
  }
}

// Sends a request and reads the whole answer; hangs up after too long a wait. Returns the answer's
// id, if it has one.
std::string Ask(server::HttpApi& api, const Target& to, std::string target, std::string body) {
  const auto exchange =
      std::make_shared<server::test::FakeExchange>(to.method, target, std::move(body), to.headers);
  api.Handle(exchange);
  if (!exchange->Read(kPatience)) {
    exchange->Leave();
    Check(exchange->Read(absl::Seconds(10)), "who goes is done with");
    return "";
  }
  const server::HttpReply& reply = exchange->reply();
  if (!IsDocumented(reply.status)) {
    std::fprintf(stderr, "%s: %d: %s\n", target.c_str(), reply.status, reply.body.c_str());
    std::abort();
  }
  if (exchange->streamed()) {
    CheckEvents(reply.body);
    return "";
  }
  if (reply.status == 200 && !reply.content_type.starts_with("application/json")) return "";
  const Json answer = Parsed(reply.body);
  Check(reply.status == 200 || !answer.at("error").at("message").get<std::string>().empty(),
        "an error says what is wrong");
  return reply.status == 200 && answer.is_object() ? answer.value("id", "") : "";
}

std::string Replaced(std::string text, std::string_view what, const std::string& with) {
  const size_t at = text.find(what);
  return at == text.npos ? text : text.replace(at, what.size(), with);
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  using namespace ovq::fuzz;
  constexpr int kMostRequests = 8;
  server::test::TestServer& server = WholeServer();
  static server::HttpApi api(server.services(), {.check_host = true});
  Bytes bytes(data, size);
  const std::string session = SomeSession(server);
  std::string response = "resp_" + std::string(32, '0');
  for (int i = 0; i < kMostRequests && (i == 0 || !bytes.empty()); ++i) {
    const Target& to = kTargets[static_cast<size_t>(bytes.Upto(kTargets.size() - 1))];
    std::string body;
    // $ stands for the session's id, \1 for the last response's, so that an input can continue
    // them.
    for (const char c : bytes.Word()) {
      if (c == '$') {
        body += session;
      } else if (c == '\1') {
        body += response;
      } else {
        body += c;
      }
    }
    const std::string path = Replaced(Replaced(to.path, "{}", session), "{r}", response);
    const std::string id = Ask(api, to, path, std::move(body));
    if (id.starts_with("resp_")) response = id;
  }
  EndSessions(server);
  return 0;
}
