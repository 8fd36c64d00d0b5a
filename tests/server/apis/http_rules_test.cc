// Bodies, hosts, origins, methods and paths that the HTTP API lets in, and those that it refuses.
#include "base/text.h"
#include "server/http/http_errors.h"
#include "tests/server/apis/http_api_fixture.h"

namespace ovq::server::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

}  // namespace
}  // namespace ovq::server::test
