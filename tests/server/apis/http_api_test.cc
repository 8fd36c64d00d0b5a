// The HTTP API without sockets: requests through its routes to an engine on a fake model.
#include "server/apis/http_api.h"

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "server/engine/common/session.h"
#include "server/http/http_errors.h"
#include "server/http/json.h"
#include "tests/server/http/fake_exchange.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kPlainTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr absl::Duration kPatience = absl::Seconds(20);

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
std::vector<Json> ParseEvents(const HttpReply& reply) {
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

TEST(FakeExchange, MayBePumpedBeforeTheAnswerBegins) {
  FakeExchange exchange("GET", "/");
  exchange.Pump();
  EXPECT_FALSE(exchange.Read(absl::Milliseconds(1))) << "nothing to ask";
  exchange.Stream({}, [](std::string& out) {
    out = "all";
    return false;
  });
  EXPECT_TRUE(exchange.Read(absl::Seconds(10)));
  EXPECT_EQ(exchange.reply().body, "all");
}

TEST_F(HttpApiTest, ACompletionIsTheSameStreamedOrNotAndOverGrpc) {
  const Json body = {{"prompt", "hello"}, {"max_tokens", 12}, {"seed", 1}, {"temperature", 1}};
  const Json whole = Post("/v1/completions", body);
  Json streamed = body;
  streamed["stream"] = true;
  streamed["stream_options"] = {{"include_usage", true}};
  const HttpReply reply = Call("POST", "/v1/completions", streamed.dump());
  EXPECT_THAT(reply.content_type, HasSubstr("text/event-stream"));
  const std::vector<Json> events = ParseEvents(reply);
  std::string text;
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) text += choice["text"].get<std::string>();
  }
  EXPECT_EQ(whole["choices"][0]["text"], text);
  EXPECT_EQ(events.back()["usage"], whole["usage"]);
  EXPECT_EQ(Generate(server_.inference(), TextRequest("hello", 12)).text, text);
}

class ScriptedApi : public HttpApiTest {
 protected:
  ScriptedApi()
      : HttpApiTest({.model = {.chat_template = kPlainTemplate},
                     .setup = [](engine::test::FakeModel& model) {
                       model.Script(2, "x\xe2\x82\xac!");  // the tokens behind a prompt of two
                       model.Script(7, engine::test::kEos);
                     }}) {}
};

TEST_F(ScriptedApi, OffsetsOfTokensCountTheCharactersOfTheText) {
  const Json body = {{"prompt", "ab"}, {"max_tokens", 5}, {"logprobs", 1}};
  const Json choice = Post("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "x\u20ac!");
  EXPECT_EQ(choice["logprobs"]["tokens"],
            Json({"x", "bytes:\\xe2", "bytes:\\x82", "bytes:\\xac", "!"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], Json({0, 1, 1, 1, 2}));
  Json streamed = body;
  streamed["stream"] = true;
  Json offsets = Json::array();
  for (const Json& event : ParseEvents(Call("POST", "/v1/completions", streamed.dump()))) {
    const Json& logprobs = event["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& offset : logprobs["text_offset"]) offsets.push_back(offset);
  }
  EXPECT_EQ(offsets, choice["logprobs"]["text_offset"]);
}

TEST_F(ScriptedApi, AStopTextMayBeASpecialToken) {
  Json body = {{"prompt", "ab"}, {"stop", {"never", "<|end|>"}}};
  const Json choice = Post("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["text"], "x\u20ac!");
  EXPECT_EQ(choice["stop_reason"], "<|end|>");
  v1::GenerateRequest request = TextRequest("ab", 9);
  request.mutable_stop()->add_stop_strings("<|end|>");
  const Collected answer = Generate(server_.inference(), request);
  ASSERT_EQ(answer.finished.size(), 1u);
  EXPECT_EQ(answer.finished[0].matched_stop(), "<|end|>");
  body["stop"] = {"<|end"};
  EXPECT_EQ(Post("/v1/completions", body)["choices"][0]["stop_reason"], engine::test::kEos);
}

// The text and the log-probabilities of every choice of a stream.
std::pair<std::vector<std::string>, Json> Joined(const std::vector<Json>& events, size_t choices) {
  std::vector<std::string> texts(choices);
  Json logprobs(choices, Json::array());
  for (const Json& event : events) {
    for (const Json& choice : event["choices"]) {
      const size_t index = choice["index"];
      texts[index] += choice["text"].get<std::string>();
      if (choice["logprobs"].is_null()) continue;
      for (const Json& one : choice["logprobs"]["token_logprobs"]) logprobs[index].push_back(one);
    }
  }
  return {texts, logprobs};
}

TEST_F(HttpApiTest, SeveralPromptsAreEachAsAlone) {
  for (const bool echo : {false, true}) {
    for (const int max_tokens : {0, 7}) {
      Json body = {{"prompt", {"hello", "you", Json({1, 2})}},
                   {"n", 3},
                   {"max_tokens", max_tokens},
                   {"seed", 5},
                   {"logprobs", 2},
                   {"echo", echo}};
      const Json whole = Post("/v1/completions", body);
      ASSERT_EQ(whole["choices"].size(), 9u);
      EXPECT_EQ(whole["usage"]["prompt_tokens"], 10);
      body["stream"] = true;
      const auto [texts, logprobs] =
          Joined(ParseEvents(Call("POST", "/v1/completions", body.dump())), 9);
      body["stream"] = false;
      for (size_t p = 0; p < 3; ++p) {
        Json alone = body;
        alone["prompt"] = body["prompt"][p];
        const Json choices = Post("/v1/completions", alone)["choices"];
        for (size_t i = 0; i < 3; ++i) {
          const size_t index = 3 * p + i;
          Json choice = choices[i];
          choice["index"] = index;
          EXPECT_EQ(whole["choices"][index], choice);
          EXPECT_EQ(texts[index], choice["text"]);
          if (!logprobs[index].empty()) {
            EXPECT_EQ(logprobs[index], choice["logprobs"]["token_logprobs"]);
          }
        }
      }
    }
  }
}

TEST_F(HttpApiTest, WhoGoesFromSeveralPromptsCancelsAll) {
  for (const bool stream : {false, true}) {
    const auto exchange = Send("POST", "/v1/completions",
                               Json({{"prompt", {"x", "y", "z"}},
                                     {"max_tokens", 4000000000},
                                     {"ignore_eos", true},
                                     {"stream", stream},
                                     {"echo", true},
                                     {"logprobs", 1}})
                                   .dump());
    server_.WaitForStats(
        [](const engine::EngineStats& stats) { return stats.requests_running == 3; });
    exchange->Leave();
    ASSERT_TRUE(exchange->Read(kPatience));
    server_.WaitForStats(
        [](const engine::EngineStats& stats) { return stats.requests_running == 0; });
  }
}

TEST_F(HttpApiTest, ErrorsNameTheFieldAndCountAsTheirStatus) {
  EXPECT_EQ(Error(Call("GET", "/nothing"), 404)["param"], "path");
  EXPECT_EQ(Error(Call("DELETE", "/v1/completions"), 405)["param"], "method");
  EXPECT_EQ(
      Error(Call("POST", "/v1/completions", R"({"prompt": "x", "temperature": -1})"), 400)["param"],
      "temperature");
  EXPECT_EQ(Error(Call("POST", "/v1/chat/completions",
                       R"({"messages": [{"role": "user", "content": "x"}], "tools": [{}]})"),
                  400)["code"],
            "unsupported_parameter");
  EXPECT_EQ(
      Error(Call("POST", "/v1/completions", R"({"prompt": "x", "model": "other"})"), 404)["code"],
      "model_not_found");
  EXPECT_EQ(Requests("/v1/completions", 400), 1);
  EXPECT_EQ(Requests("/v1/completions", 404), 1);
  EXPECT_EQ(Requests("/v1/completions", 405) + Requests("other", 405), 1);
  EXPECT_EQ(Requests("other", 404), 1);
}

TEST_F(HttpApiTest, TheModelHasSeveralNames) {
  const Json list = Json::parse(Call("GET", "/v1/models").body)["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[1]["id"], "org/fake");
  for (const char* path : {"/v1/models/org/fake", "/v1/models/org%2Ffake"}) {
    EXPECT_EQ(Json::parse(Call("GET", path).body), list[1]) << path;
  }
  EXPECT_EQ(Json::parse(Call("GET", "/v1/models/fake").body), list[0]);
  for (const char* path : {"/v1/models/org", "/v1/models/org/fake/x"}) {
    EXPECT_EQ(Error(Call("GET", path), 404)["code"], "model_not_found") << path;
  }
  for (const char* name : {"fake", "org/fake"}) {
    EXPECT_EQ(
        Post("/v1/completions", {{"model", name}, {"prompt", "x"}, {"max_tokens", 1}})["model"],
        "fake");
  }
  EXPECT_THAT(Error(Call("GET", "/v1/models/nope"), 404)["message"],
              HasSubstr(R"(model: expected "fake" or "org/fake", which is served, got 'nope')"));
}

TEST_F(HttpApiTest, AClientIsAnAddress) {
  EXPECT_EQ(FakeExchange("GET", "/", "", {}, "ipv4:10.1.2.3:456").client(), "ipv4:10.1.2.3");
  EXPECT_EQ(FakeExchange("GET", "/", "", {}, "ipv6:[::1]:456").client(), "ipv6:[::1]");
}

TEST_F(HttpApiTest, BodiesThatAreNone) {
  const auto post = [this](const std::string& body) {
    return Error(Call("POST", "/v1/completions", body), 400)["message"].get<std::string>();
  };
  EXPECT_THAT(post("{"), HasSubstr("body"));
  EXPECT_THAT(post("[]"), HasSubstr("body"));
  EXPECT_THAT(post("{\"prompt\": \"\xff\"}"), HasSubstr("offset 12"));
  EXPECT_THAT(post(std::string(1 << 20, '[')), HasSubstr("nested"));
  EXPECT_THAT(post(R"({"prompt": "a", "prompt": "b"})"), HasSubstr("prompt"));
  EXPECT_THAT(Error(Call("POST", "/ovq/v1/sessions", R"({"ttll": "1s"})"), 400)["message"],
              HasSubstr("ttll"));
}

TEST_F(HttpApiTest, WhoMayAskWithoutATokenIsOnThisMachine) {
  for (const char* host : {"localhost:80", "127.0.0.1:8080", "[::1]:1", "127.1.2.3", "LocalHost",
                           "a.localhost:1", "localhost.", "0.0.0.0:8080"}) {
    auto exchange = std::make_shared<FakeExchange>("GET", "/v1/models");
    exchange->request().headers = {{"host", host}};
    api_.Handle(exchange);
    ASSERT_TRUE(exchange->Read(kPatience));
    EXPECT_EQ(exchange->reply().status, 200) << host;
  }
  for (const char* host :
       {"evil.example", "localhost.evil.example", "10.0.0.1:80", "127.evil.example", "notlocalhost",
        "0.0.0.0.evil.example", "[::1", "[127.0.0.1]", "::1", ""}) {
    auto exchange = std::make_shared<FakeExchange>("GET", "/v1/models");
    exchange->request().headers = {{"host", host}};
    api_.Handle(exchange);
    ASSERT_TRUE(exchange->Read(kPatience));
    EXPECT_THAT(Error(exchange->reply(), 403)["message"],
                testing::AllOf(HasSubstr("--http-allowed-hosts"), HasSubstr(Quoted(host))));
  }
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"origin", "http://localhost"}}).status, 200);
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"origin", "http://evil.example"}}).status, 403);
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"origin", "null"}}).status, 403);
}

std::string Header(const HttpReply& reply, const std::string& name) {
  std::string value;
  for (const auto& [key, text] : reply.headers) {
    if (key == name) value += text;
  }
  return value;
}

class OpenToPages : public HttpApiTest {
 protected:
  OpenToPages()
      : HttpApiTest({.model = {.chat_template = kPlainTemplate}},
                    {.check_host = true,
                     .hosts = *ParseAllowedHosts("Docker.Internal:1, .b.example,*.c.example"),
                     .origins = *ParseAllowedOrigins("https://Chat.example:443/,app://x")}) {}
};

TEST_F(OpenToPages, HostsAreThoseNamed) {
  for (const auto& [host, status] :
       std::initializer_list<std::pair<const char*, int>>{{"docker.internal:8080", 200},
                                                          {"DOCKER.INTERNAL", 200},
                                                          {"b.example", 200},
                                                          {"a.b.example", 200},
                                                          {"a.c.example", 200},
                                                          {"localhost", 200},
                                                          {"c.example", 403},
                                                          {"ab.example", 403},
                                                          {"a.docker.internal", 403}}) {
    auto exchange = std::make_shared<FakeExchange>("GET", "/v1/models");
    exchange->request().headers = {{"host", host}};
    api_.Handle(exchange);
    ASSERT_TRUE(exchange->Read(kPatience));
    EXPECT_EQ(exchange->reply().status, status) << host;
  }
}

TEST_F(OpenToPages, PagesOfAllowedOriginsReadEveryAnswer) {
  const HttpHeaders page = {{"origin", "https://chat.example"}};
  const char* const allow_origin = "Access-Control-Allow-Origin";
  const HttpReply stream =
      Call("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1, "stream": true})", page);
  EXPECT_EQ(stream.status, 200);
  for (const HttpReply& reply :
       {stream, Call("GET", "/v1/models", "", page), Call("GET", "/nothing", "", page),
        Call("GET", "/health", "", page), Call("POST", "/v1/completions", "{", page)}) {
    EXPECT_EQ(Header(reply, allow_origin), "https://chat.example") << reply.body;
    EXPECT_EQ(Header(reply, "Access-Control-Expose-Headers"), "*");
    EXPECT_EQ(Header(reply, "Vary"), "Origin");
  }
  EXPECT_EQ(Call("GET", "/v1/models", "", {{"origin", "app://x"}}).status, 200);
  const HttpReply foreign = Call("GET", "/v1/models", "", {{"origin", "https://evil.example"}});
  EXPECT_THAT(Error(foreign, 403)["message"],
              testing::AllOf(HasSubstr("--http-allowed-origins"), HasSubstr("evil.example")));
  EXPECT_EQ(Header(foreign, allow_origin), "");
  EXPECT_EQ(Header(foreign, "Vary"), "Origin");
}

TEST_F(OpenToPages, PreflightsAreAnswered) {
  const HttpReply reply =
      Call("OPTIONS", "/v1/responses/resp_1", "",
           {{"origin", "https://chat.example"},
            {"access-control-request-method", "DELETE"},
            {"access-control-request-headers", "authorization,x-stainless-lang"},
            {"access-control-request-private-network", "true"}});
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.content_type + reply.body, "");
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Origin"), "https://chat.example");
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Methods"), "DELETE, GET, HEAD, OPTIONS");
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Headers"), "authorization,x-stainless-lang");
  EXPECT_EQ(Header(reply, "Access-Control-Allow-Private-Network"), "true");
  EXPECT_NE(Header(reply, "Access-Control-Max-Age"), "");
  EXPECT_EQ(Call("OPTIONS", "/v1/models", "", {{"origin", "https://evil.example"}}).status, 403);
}

TEST(BrowserRules, FlagsSayWhichEntryIsBad) {
  EXPECT_THAT(*ParseAllowedHosts(""), ElementsAre());
  EXPECT_THAT(*ParseAllowedHosts("[FE80::1]:80,*"), ElementsAre("[fe80::1]", "*"));
  EXPECT_THAT(*ParseAllowedOrigins("*,HTTP://A:80"), ElementsAre("*", "http://a"));
  for (const char* bad : {"a,,b", "http://a", "a b", "a*", "*.*"}) {
    EXPECT_FALSE(ParseAllowedHosts(bad).ok()) << bad;
  }
  for (const char* bad : {"a.example", "null", "http://", "http://a/b", "https://*.a.example"}) {
    EXPECT_THAT(std::string(ParseAllowedOrigins(bad).status().message()), HasSubstr(bad));
  }
}

TEST_F(HttpApiTest, MethodsOfAPathAreNamed) {
  EXPECT_EQ(Header(Call("PUT", "/v1/responses/resp_1"), "Allow"), "DELETE, GET, HEAD, OPTIONS");
  EXPECT_EQ(Header(Call("GET", "/v1/completions"), "Allow"), "OPTIONS, POST");
  EXPECT_EQ(Header(Call("POST", "/health"), "Allow"), "GET, HEAD, OPTIONS");
  const HttpReply options = Call("OPTIONS", "/v1/models", "", {{"origin", "http://localhost"}});
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(Header(options, "Allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(Header(options, "Access-Control-Allow-Methods"), "");
  EXPECT_EQ(Header(Call("OPTIONS", "*"), "Allow"), "DELETE, GET, HEAD, OPTIONS, POST");
  EXPECT_EQ(Call("OPTIONS", "/nothing").status, 404);
}

TEST_F(HttpApiTest, SlashesAreCountedOnce) {
  EXPECT_EQ(Call("GET", "//v1//models/").status, 200);
  EXPECT_EQ(Call("GET", "//health/?x=//").status, 200);
  EXPECT_EQ(Call("GET", "//").status, 200);  // the console
  EXPECT_THAT(Error(Call("GET", "/chat//completions"), 404)["message"],
              HasSubstr("'/chat/completions'"));
}

TEST_F(HttpApiTest, OnlyPlainJsonIsABody) {
  const auto send = [this](const std::string& type, const std::string& coding) {
    auto exchange = std::make_shared<FakeExchange>("POST", "/tokenize", R"({"prompt": "x"})");
    exchange->request().headers = {
        {"host", "localhost"}, {"content-type", type}, {"content-encoding", coding}};
    api_.Handle(exchange);
    EXPECT_TRUE(exchange->Read(kPatience));
    return exchange->reply();
  };
  EXPECT_EQ(send("Application/JSON ; charset=utf-8", "identity").status, 200);
  EXPECT_EQ(send("application/jsonx", "identity").status, 415);
  const HttpReply packed = send("application/json", "gzip");
  EXPECT_THAT(Error(packed, 415)["message"], HasSubstr("content-encoding"));
  EXPECT_EQ(Header(packed, "Accept-Encoding"), "identity");
}

TEST_F(HttpApiTest, SyntaxErrorsSayWhereAndNotMuchMore) {
  for (const char* path : {"/v1/completions", "/ovq/v1/sessions"}) {
    const std::string message =
        Error(Call("POST", path, "{\n \"a\": " + std::string(500, 'q') + "}"), 400)["message"];
    EXPECT_THAT(message, HasSubstr("line 2, column 7")) << path;
    EXPECT_THAT(message, HasSubstr("invalid literal"));
    EXPECT_LT(message.size(), 150);
  }
}

TEST_F(HttpApiTest, LineEndsBeyondAsciiAreEscaped) {
  const std::string ends = "\xc2\x85\xe2\x80\xa8\xe2\x80\xa9";
  const HttpReply reply = Call("POST", "/detokenize", R"({"tokens": [194, 133, 226, 128, 168]})");
  EXPECT_THAT(reply.body, HasSubstr(R"(\u0085\u2028)"));
  EXPECT_EQ(Json::parse(Dump(ends)), ends);
  v1::Session message;
  message.set_session_id(ends);
  for (const std::string& text : {Dump({{ends, ends}}), MessageJson(message)}) {
    for (const char* end : {"\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9"}) {
      EXPECT_EQ(text.find(end), std::string::npos) << text;
    }
  }
}

TEST_F(HttpApiTest, ALongSilenceOfAStreamIsFilled) {
  const int64_t held = HoldNextStep();
  const std::string body = R"({"prompt": "hello", "max_tokens": 3, "stream": true})";
  const auto has_comment = [](const std::string& text) { return text == ":\n\n"; };
  const auto streamed = Send("POST", "/v1/completions", body);
  server_.model().gate().AwaitEntered(held);
  EXPECT_FALSE(streamed->Read(absl::Milliseconds(50))) << "no head before there is an event";
  streamed->Quiet();
  ASSERT_TRUE(streamed->Read(kPatience, has_comment));
  streamed->Quiet();
  ASSERT_TRUE(
      streamed->Read(kPatience, [](const std::string& text) { return text == ":\n\n:\n\n"; }));
  const auto whole = Send("POST", "/v1/completions", R"({"prompt": "hello", "max_tokens": 3})");
  whole->Quiet();
  server_.model().gate().Open();
  ASSERT_TRUE(streamed->Read(kPatience));
  EXPECT_THAT(streamed->reply().body, testing::StartsWith(":\n\n:\n\ndata: {"));
  EXPECT_THAT(streamed->reply().body, testing::EndsWith("data: [DONE]\n\n"));
  ASSERT_TRUE(whole->Read(kPatience));
  EXPECT_EQ(Json::parse(whole->reply().body)["usage"]["completion_tokens"], 3);
}

TEST_F(HttpApiTest, AnErrorBehindACommentIsAnEvent) {
  const int64_t held = HoldNextStep();
  const auto exchange =
      Send("POST", "/v1/completions", R"({"prompt": "hello", "max_tokens": 3, "stream": true})");
  server_.model().gate().AwaitEntered(held);
  exchange->Quiet();
  ASSERT_TRUE(exchange->Read(kPatience, [](const std::string& text) { return !text.empty(); }));
  exchange->Leave();
  server_.model().gate().Open();
  ASSERT_TRUE(exchange->Read(kPatience));
  EXPECT_EQ(exchange->reply().status, 200);
  EXPECT_THAT(exchange->reply().body, testing::StartsWith(":\n\n"));
  EXPECT_THAT(exchange->reply().body, HasSubstr("\"status\":\"CANCELLED\""));
}

TEST_F(HttpApiTest, AConnectionThatIsSilentHasComments) {
  HoldNextStep();
  ASSERT_TRUE(api_.Listen({.address = "127.0.0.1:0", .quiet_time = absl::Milliseconds(20)}).ok());
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io);
  socket.connect(
      {boost::asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(api_.server().port())});
  const std::string body = R"({"prompt": "hello", "max_tokens": 3, "stream": true})";
  const std::string request = absl::StrCat(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
      "Content-Length: ", body.size(), "\r\nConnection: close\r\n\r\n", body);
  boost::asio::write(socket, boost::asio::buffer(request));
  std::string got;
  boost::asio::read_until(socket, boost::asio::dynamic_buffer(got),
                          "\r\n\r\n3\r\n:\n\n\r\n3\r\n:\n\n\r\n");
  EXPECT_THAT(got, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
  server_.model().gate().Open();
  boost::system::error_code end;
  boost::asio::read(socket, boost::asio::dynamic_buffer(got), end);
  EXPECT_THAT(got, testing::EndsWith("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

TEST_F(HttpApiTest, WhoGoesIsCancelled) {
  const auto exchange = Send("POST", "/v1/completions",
                             R"({"prompt": "x", "max_tokens": 4000000000, "stream": true,
                                 "ignore_eos": true})");
  ASSERT_TRUE(
      exchange->Read(kPatience, [](const std::string& body) { return body.size() > 1000; }));
  exchange->Leave();
  ASSERT_TRUE(exchange->Read(kPatience));
  server_.WaitForStats(
      [](const engine::EngineStats& stats) { return stats.requests_running == 0; });
  EXPECT_EQ(Requests("/v1/completions", 499), 1);
}

TEST_F(HttpApiTest, WhoReadsNothingIsParkedAndOthersGoOn) {
  const auto slow = Send("POST", "/v1/completions",
                         R"({"prompt": "x", "max_tokens": 4000000000, "stream": true,
                             "ignore_eos": true})");
  server_.WaitForStats(
      [](const engine::EngineStats& stats) { return stats.requests_running == 1; });
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Post("/v1/completions", {{"prompt", "y"},
                                       {"max_tokens", 500},
                                       {"ignore_eos", true}})["usage"]["completion_tokens"],
              500);
  }
  slow->Leave();
  ASSERT_TRUE(slow->Read(kPatience));
}

TEST_F(HttpApiTest, AStoredResponseGoesOnWithoutItsPrompt) {
  const Json first = Post(
      "/v1/responses",
      {{"input", std::string(2000, 'x')}, {"instructions", "be brief"}, {"max_output_tokens", 5}});
  const std::string id = first["id"];
  const Json second = Post(
      "/v1/responses", {{"input", "more"}, {"previous_response_id", id}, {"max_output_tokens", 5}});
  const Json& usage = second["usage"];
  EXPECT_GT(usage["input_tokens"], 2000);
  EXPECT_LT(
      usage["input_tokens"].get<int>() - usage["input_tokens_details"]["cached_tokens"].get<int>(),
      40);
  EXPECT_EQ(Json::parse(Call("GET", "/v1/responses/" + id).body), first);
  EXPECT_EQ(Call("DELETE", "/v1/responses/" + id).status, 200);
  EXPECT_EQ(Call("GET", "/v1/responses/" + id).status, 404);
  EXPECT_EQ(Error(Call("POST", "/v1/responses",
                       Json({{"input", "x"}, {"previous_response_id", id}}).dump()),
                  404)["code"],
            "previous_response_not_found");
  Post("/v1/responses",
       {{"input", "x"}, {"previous_response_id", second["id"]}, {"max_output_tokens", 1}});
}

TEST_F(HttpApiTest, AnAgentsNextTurnIsReadFromTheCache) {
  const std::string tool(300, 't');
  Json messages = {{{"role", "system"}, {"content", std::string(400, 's')}},
                   {{"role", "user"}, {"content", "list the files"}}};
  int64_t before = 0;  // prompt tokens of the turn before
  for (int turn = 0; turn < 8; ++turn) {
    const Json body = {{"messages", messages}, {"max_tokens", 24}, {"seed", turn}};
    const Json answer = Post("/v1/chat/completions", body);
    const Json& usage = answer["usage"];
    const auto cached = usage["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
    // All that the turns have in common: the opening of the last answer is written again.
    EXPECT_GE(cached, before - 16) << turn;
    EXPECT_LT(cached, usage["prompt_tokens"].get<int64_t>());
    before = usage["prompt_tokens"];
    Json without = body;
    without["cache_prompt"] = false;
    const Json plain = Post("/v1/chat/completions", without);
    EXPECT_EQ(plain["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    EXPECT_EQ(plain["choices"], answer["choices"]);
    messages.push_back({{"role", "assistant"}, {"content", "without its thoughts"}});
    messages.push_back({{"role", "user"}, {"content", tool + std::to_string(turn)}});
  }
  // An early message is edited; then a summary takes the place of all but the system message.
  messages[3]["content"] = "another";
  const auto cached = [this](const Json& chat) {
    const Json answer = Post("/v1/chat/completions", {{"messages", chat}, {"max_tokens", 1}});
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  EXPECT_GT(cached(messages), 400);
  const Json summary = {messages[0], {{"role", "user"}, {"content", "a summary of it all"}}};
  EXPECT_GE(cached(summary), 400);
}

TEST_F(HttpApiTest, CallsHaveAKeyByWhateverNameTheyGiveIt) {
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "x"}}}}, {"max_tokens", 1}};
  const auto key = [&](const HttpHeaders& headers, const Json& more = Json::object()) {
    Json body = chat;
    body.update(more);
    const HttpReply reply = Call("POST", "/v1/chat/completions", body.dump(), headers);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Header(reply, "ovq-session");
  };
  EXPECT_EQ(key({}), "");
  for (const char* name : {"ovq-session", "x-session-id", "session-id", "session_id",
                           "x-session-affinity", "x-claude-code-session-id"}) {
    EXPECT_EQ(key({{name, "abc-1"}}), "abc-1") << name;
  }
  EXPECT_EQ(key({{"x-session-id", "b"}, {"ovq-session", "a"}}), "a");
  EXPECT_EQ(key({{"x-session-id", ""}, {"session-id", "c"}}), "c");
  EXPECT_EQ(key({}, {{"prompt_cache_key", "p"}}), "p");
  EXPECT_EQ(key({{"session-id", "c"}}, {{"prompt_cache_key", "p"}}), "c");
  // Any other text is hashed: the same text to the same key, and it is not in the log.
  const std::string made = key({{"session_id", "user 7/chat:9"}});
  EXPECT_TRUE(engine::IsSessionKey(made)) << made;
  EXPECT_EQ(key({}, {{"prompt_cache_key", "user 7/chat:9"}}), made);
  EXPECT_NE(key({}, {{"prompt_cache_key", "user 7/chat:8"}}), made);
  EXPECT_EQ(key({}, {{"prompt_cache_key", std::string(5000, 'x')}}).size(), made.size());
  EXPECT_THAT(server_.LogText(), testing::Not(HasSubstr("user 7")));
  // A stored response keeps the key in its id.
  Json response = {{"input", "x"}, {"max_output_tokens", 1}, {"prompt_cache_key", "user 7/chat:9"}};
  const HttpReply stored = Call("POST", "/v1/responses", response.dump());
  EXPECT_EQ(Header(stored, "ovq-session"), made);
  EXPECT_THAT(Json::parse(stored.body)["id"].get<std::string>(),
              testing::StartsWith("resp_" + made + "."));
  EXPECT_EQ(Error(Call("POST", "/v1/chat/completions",
                       R"({"messages": [{"role": "user", "content": "x"}],
                           "prompt_cache_key": 7})"),
                  400)["param"],
            "prompt_cache_key");
}

TEST_F(HttpApiTest, WhatABranchNeedsIsThere) {
  const Json session = Post("/ovq/v1/sessions", {{"prompt", {{"text", "hello"}}}});
  const std::string path = "/ovq/v1/sessions/" + session["sessionId"].get<std::string>();
  EXPECT_EQ(Post(path + "/fork", Json::object())["sessions"][0]["position"], "5");
  EXPECT_EQ(Post(path + "/rewind", {{"position", "3"}})["session"]["position"], "3");
  EXPECT_EQ(Json::parse(Call("GET", "/ovq/v1/sessions").body)["sessions"].size(), 2);
  EXPECT_EQ(Call("DELETE", path).status, 200);
  EXPECT_EQ(Call("GET", path).status, 404);
}

TEST_F(HttpApiTest, HealthSaysWhetherWorkIsWelcome) {
  EXPECT_EQ(Call("GET", "/health").status, 200);
  api_.SetReady(false);  // as when an iteration hangs
  EXPECT_EQ(Call("GET", "/health").status, 503);
  api_.SetReady(true);
  server_.services().Drain();
  EXPECT_EQ(Call("GET", "/health").status, 503);
}

class SmallMemory : public HttpApiTest {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.engine.request_memory = std::make_shared<ByteBudget>(size_t{1} << 20);
    return options;
  }
  SmallMemory() : HttpApiTest(Options()) {}
};

TEST_F(SmallMemory, WhatABodyWouldTakeIsCountedBeforeItIsParsed) {
  std::string body = R"({"prompt": [0)";
  for (int i = 0; i < 20000; ++i) body += ",0";
  const Json error = Error(Call("POST", "/v1/completions", body + "]}"), 429);
  EXPECT_EQ(error["type"], "rate_limit_error");
  // The memory is released.
  EXPECT_EQ(Call("POST", "/v1/completions", R"({"prompt": "x", "max_tokens": 1})").status, 200);
}

}  // namespace
}  // namespace ovq::server::test
