// Every path of the HTTP front with any bytes for its body, through a whole server on a model that
// costs nothing: each request gets an answer that is JSON, or events that are, with a status that
// docs/http.md has, and leaves nothing behind.
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

// {}: a session's or a response's id, which the input names.
constexpr std::array kPosted = {
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/tokenize",
    "/detokenize",
    "/ovq/v1/generate",
    "/ovq/v1/sessions",
    "/ovq/v1/sessions/{}/fork",
    "/ovq/v1/sessions/{}/rewind",
    "/ovq/v1/sessions/{}/generate",
};
constexpr absl::Duration kPatience = absl::Milliseconds(300);

// But for those that speak of the server: it is well, and alone.
bool IsDocumented(int status) {
  constexpr std::array kStatuses = {200, 400, 404, 405, 409, 413, 415, 429};
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

// Sends it, reads all of the answer; who waits too long, goes.
void Ask(HttpApi& api, const std::string& target, std::string body) {
  const auto exchange = std::make_shared<test::FakeExchange>("POST", target, std::move(body));
  api.Handle(exchange);
  if (!exchange->Read(kPatience)) {
    exchange->Leave();
    Check(exchange->Read(absl::Seconds(10)), "who goes is done with");
    return;
  }
  const HttpReply& reply = exchange->reply();
  if (!IsDocumented(reply.status)) {
    std::fprintf(stderr, "%s: %d: %s\n", target.c_str(), reply.status, reply.body.c_str());
    std::abort();
  }
  if (exchange->streamed()) return CheckEvents(reply.body);
  const Json answer = Parsed(reply.body);
  Check(reply.status == 200 || !answer.at("error").at("message").get<std::string>().empty(),
        "an error says what is wrong");
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  using namespace ovq::fuzz;
  test::TestServer& server = WholeServer();
  static HttpApi api(server.services(), /*loopback=*/true);
  Bytes bytes(data, size);
  std::string target = kPosted[static_cast<size_t>(bytes.Upto(kPosted.size() - 1))];
  const std::string session = server.NewSession();
  std::string body;
  // $: the session, so that an input can go on from one.
  for (const char c : bytes.Rest()) c == '$' ? body += session : body += c;
  if (const size_t at = target.find("{}"); at != std::string::npos) target.replace(at, 2, session);
  Ask(api, target, std::move(body));
  EndSessions(server);
  return 0;
}
