// The routes of the HTTP API over an engine on a fake model, for tests without sockets.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/apis/http_api.h"
#include "server/http/json.h"
#include "tests/server/http/fake_exchange.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {

inline constexpr const char* kPlainTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
inline constexpr absl::Duration kPatience = absl::Seconds(20);

class HttpApiTest : public testing::Test {
 protected:
  explicit HttpApiTest(TestServerOptions options = {.model = {.chat_template = kPlainTemplate}},
                       BrowserRules rules = {.check_host = true})
      : server_(std::move(options)), api_(server_.services(), std::move(rules)) {}

  std::shared_ptr<FakeExchange> Send(std::string method, std::string target, std::string body = {},
                                     HttpHeaders headers = {}) {
    auto exchange = std::make_shared<FakeExchange>(std::move(method), std::move(target),
                                                   std::move(body), std::move(headers));
    api_.Handle(exchange);
    return exchange;
  }
  HttpReply Call(std::string method, std::string target, std::string body = {},
                 HttpHeaders headers = {}) {
    const auto exchange =
        Send(std::move(method), std::move(target), std::move(body), std::move(headers));
    EXPECT_TRUE(exchange->Read(kPatience));
    return exchange->reply();
  }
  Json Post(const std::string& target, const Json& body, int status = 200) {
    const HttpReply reply = Call("POST", target, body.dump());
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body);
  }
  // Stops the model before its next step, whose number it gives, until its gate is opened.
  int64_t HoldNextStep() {
    const int64_t held = server_.model().gate().steps() + 1;
    server_.model().gate().CloseAt(held);
    return held;
  }
  // The value of `{"error": ...}` in the reply.
  Json Error(const HttpReply& reply, int status) {
    EXPECT_EQ(reply.status, status) << reply.body;
    return Json::parse(reply.body).at("error");
  }
  double Requests(const std::string& route, int status) {
    const std::string wanted = absl::StrCat("route=\"", route, "\",status=\"", status, "\"} ");
    const std::string page = server_.metrics().Text();
    const size_t at = page.find(wanted);
    return at == std::string::npos ? 0 : std::stod(page.substr(at + wanted.size()));
  }

  TestServer server_;
  HttpApi api_;
};

// The events of a stream without the closing one.
inline std::vector<Json> ParseEvents(const HttpReply& reply) {
  std::vector<Json> events;
  bool done = false;
  for (absl::string_view event : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
    EXPECT_FALSE(done) << "something follows [DONE]";
    EXPECT_TRUE(absl::ConsumePrefix(&event, "data: ")) << event;
    done = event == "[DONE]";
    if (!done) events.push_back(Json::parse(event));
  }
  EXPECT_TRUE(done);
  return events;
}

// The header's value, "" without it.
inline std::string Header(const HttpReply& reply, const std::string& name) {
  std::string value;
  for (const auto& [key, text] : reply.headers) {
    if (key == name) value += text;
  }
  return value;
}

}  // namespace ovq::server::test
