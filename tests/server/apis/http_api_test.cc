// The HTTP API without sockets: requests through its routes to an engine on a fake model.

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <vector>

#include "base/text.h"
#include "server/engine/common/session.h"
#include "server/http/http_errors.h"
#include "tests/server/apis/http_api_fixture.h"

namespace ovq::server::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

TEST_F(HttpApiTest, TheInputOfAStoredResponseIsListed) {
  const auto items = [this](const Json& response, const std::string& query = "") {
    const std::string path = "/v1/responses/" + response["id"].get<std::string>() + "/input_items";
    const HttpReply reply = Call("GET", path + query);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  };
  const Json text = Post("/v1/responses", {{"input", "hello"}, {"max_output_tokens", 1}});
  const Json list = items(text);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["has_more"], false);
  ASSERT_EQ(list["data"].size(), 1u);
  const Json& item = list["data"][0];
  EXPECT_EQ(item["role"], "user");
  EXPECT_EQ(item["type"], "message");
  EXPECT_EQ(item["content"], Json::parse(R"([{"type": "input_text", "text": "hello"}])"));
  EXPECT_EQ(list["first_id"], item["id"]);

  Json input = {{{"role", "user"}, {"content", "a"}, {"id", "msg_mine"}},
                {{"type", "function_call"}, {"call_id", "c1"}, {"name", "f"}, {"arguments", "{}"}},
                {{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "b"}}};
  const Json of_items = Post("/v1/responses", {{"input", input}, {"max_output_tokens", 1}});
  const Json all = items(of_items, "?order=asc")["data"];
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["id"], "msg_mine");
  for (const char* name : {"type", "call_id", "name", "arguments"}) {
    EXPECT_EQ(all[1][name], input[1][name]);
  }
  EXPECT_EQ(all[2]["output"], "b");
  const Json first = items(of_items, "?limit=2");
  EXPECT_EQ(first["data"], Json::array({all[2], all[1]}));
  EXPECT_EQ(first["has_more"], true);
  const Json rest = items(of_items, "?limit=2&after=" + first["last_id"].get<std::string>());
  EXPECT_EQ(rest["data"], Json::array({all[0]}));
  EXPECT_EQ(rest["has_more"], false);
  const std::string path = "/v1/responses/" + text["id"].get<std::string>() + "/input_items";
  const std::pair<const char*, const char*> wrong[] = {
      {"limit", "0"}, {"limit", "101"}, {"limit", "x"}, {"order", "up"}, {"after", "item_7"}};
  for (const auto& [name, value] : wrong) {
    const Json error = Error(Call("GET", path + "?" + name + "=" + value), 400);
    EXPECT_EQ(error["param"], name);
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(value));
  }
  Call("DELETE", "/v1/responses/" + text["id"].get<std::string>());
  EXPECT_EQ(Error(Call("GET", path), 404)["param"], "response_id");
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

TEST_F(HttpApiTest, TheLogLeavesOutHealthChecks) {
  Call("GET", "/health");
  Call("GET", "/version");
  const std::string log = server_.LogText();
  EXPECT_THAT(log, testing::HasSubstr(R"("method":"/version")"));
  EXPECT_THAT(log, testing::Not(testing::HasSubstr("/health")));
  EXPECT_EQ(Requests("/health", 200), 1);  // metrics count them
}

class SmallMemory : public HttpApiTest {
 protected:
  static TestServerOptions Options() {
    TestServerOptions options;
    options.engine.request_memory = std::make_shared<ByteBudget>(size_t{1} << 20);
    options.model.chat_template = kPlainTemplate;
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

// The memory for a stored text is a few times the text, and thirty times that there is not.
TEST_F(SmallMemory, ManyReferencesToOneResponseReadItOnce) {
  const Json stored =
      Post("/v1/responses", {{"input", std::string(4000, 'x')}, {"max_output_tokens", 5}});
  const Json reference = {{"type", "item_reference"}, {"id", stored["output"][0]["id"]}};
  Json body = {{"input", Json::array()}, {"max_output_tokens", 1}};
  for (int i = 0; i < 30; ++i) body["input"].push_back(reference);
  Post("/v1/responses", body);
  // References to two responses by turns read each text anew, in the memory of the one before.
  const Json other =
      Post("/v1/responses", {{"input", std::string(4000, 'y')}, {"max_output_tokens", 5}});
  for (size_t i = 0; i < 30; i += 2) body["input"][i]["id"] = other["output"][0]["id"];
  Post("/v1/responses", body);
  body["input"][7]["id"] = "msg_" + other["id"].get<std::string>().substr(5) + "_9";
  EXPECT_EQ(Error(Call("POST", "/v1/responses", body.dump()), 404)["param"], "input[7].id");
}

// Its last event has the whole text, which is kept until then.
TEST_F(SmallMemory, AStreamedResponseIsCountedAsItGrows) {
  Json body = {{"input", "x"},
               {"include", {"message.output_text.logprobs"}},
               {"max_output_tokens", 3000},
               {"ignore_eos", true},
               {"stream", true}};
  const HttpReply refused = Call("POST", "/v1/responses", body.dump());
  EXPECT_EQ(refused.status, 200);
  EXPECT_THAT(refused.body, HasSubstr("event: error\n"));
  EXPECT_THAT(refused.body, HasSubstr("request memory"));
  EXPECT_THAT(refused.body, testing::Not(HasSubstr("event: response.incomplete")));
  // The memory is released.
  body["max_output_tokens"] = 100;
  EXPECT_THAT(Call("POST", "/v1/responses", body.dump()).body,
              HasSubstr("event: response.incomplete"));
  // Other streams keep nothing.
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "x"}}}},
                     {"logprobs", true},
                     {"max_tokens", 3000},
                     {"ignore_eos", true},
                     {"stream", true}};
  EXPECT_THAT(Call("POST", "/v1/chat/completions", chat.dump()).body,
              testing::EndsWith("data: [DONE]\n\n"));
}

}  // namespace
}  // namespace ovq::server::test
