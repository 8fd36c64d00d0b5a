// Calls to tools and reasoning in the answers of the HTTP API, on a model that writes what a test
// tells it. The three APIs are in one file because they share the model, its answer and the tools.
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/apis/http_api.h"
#include "server/http/json.h"
#include "tests/server/http/fake_exchange.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

// ChatML with Qwen's form of calls. The answer opens with reasoning.
constexpr const char* kToolsTemplate =
    "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role + '\n' }}"
    "{%- if m.role == 'assistant' %}"
    "<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{{ m.content or '' }}"
    "{%- for c in m.tool_calls or [] %}{{ '\n' }}<tool_call>\n{\"name\": \"{{ c.function.name "
    "}}\", "
    "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
    "{%- else %}{{ m.content }}{%- endif %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{{ '<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n' }}{% endif %}";

constexpr const char* kAnswer =
    "Two sums.\n</think>\n\nI add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"b\": 1, "
    "\"a\": [2]}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

Json Tool(const char* name) {
  return {{"type", "function"},
          {"function", {{"name", name}, {"parameters", {{"type", "object"}}}}}};
}
Json Chat() {
  return {{"messages", {{{"role", "user"}, {"content", "Add!"}}}},
          {"tools", Json::array({Tool("add"), Tool("now")})}};
}
Json Response() {
  Json body = {{"input", "Add!"}, {"tools", Json::array()}};
  for (const char* name : {"add", "now"}) {
    Json tool = Tool(name)["function"];
    tool["type"] = "function";
    body["tools"].push_back(tool);
  }
  return body;
}

// The tokens of an answer, of which "<tool_call>" is one.
std::vector<int32_t> TokensOf(std::string_view answer) {
  constexpr std::string_view kText = "<tool_call>";
  std::vector<int32_t> tokens;
  while (!answer.empty()) {
    const bool marker = answer.starts_with(kText);
    tokens.push_back(marker ? engine::test::kMarker : static_cast<uint8_t>(answer.front()));
    answer.remove_prefix(marker ? kText.size() : 1);
  }
  return tokens;
}

class ScriptedServer {
 public:
  // The model writes `answer` behind the first `position` tokens.
  explicit ScriptedServer(int64_t position = 0, const std::string& answer = "")
      : server_({.model = {.chat_template = kToolsTemplate},
                 .setup =
                     [&](engine::test::FakeModel& model) {
                       const std::vector<int32_t> tokens = TokensOf(answer);
                       for (const int32_t token : tokens) model.Script(position++, token);
                       model.Script(position, engine::test::kEos);
                     }}),
        api_(server_.services(), {.check_host = true}) {}

  HttpReply Post(const std::string& target, const Json& body) {
    auto exchange = std::make_shared<FakeExchange>("POST", target, body.dump());
    api_.Handle(exchange);
    EXPECT_TRUE(exchange->Read(absl::Seconds(20)));
    return exchange->reply();
  }
  engine::EngineStats Settled() { return server_.engine().Stats(); }

 private:
  TestServer server_;
  HttpApi api_;
};

// A server whose model answers this request so.
std::unique_ptr<ScriptedServer> Answering(const std::string& target, Json body,
                                          const std::string& answer) {
  body.erase("max_tokens");
  body[target == "/v1/responses" ? "max_output_tokens" : "max_tokens"] = 0;
  const Json counted = Json::parse(ScriptedServer().Post(target, body).body);
  EXPECT_TRUE(counted.contains("usage")) << counted.dump();
  const Json& usage = counted["usage"];
  const Json tokens = usage.value("prompt_tokens", usage.value("input_tokens", Json(0)));
  return std::make_unique<ScriptedServer>(tokens.get<int64_t>(), answer);
}

Json Whole(const std::string& target, const Json& body, const std::string& answer) {
  const HttpReply reply = Answering(target, body, answer)->Post(target, body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body);
}

std::vector<Json> Events(const std::string& target, Json body, const std::string& answer) {
  const auto server = Answering(target, body, answer);
  body["stream"] = true;
  const HttpReply reply = server->Post(target, body);
  std::vector<Json> events;
  for (absl::string_view event : absl::StrSplit(reply.body, "\n\n", absl::SkipEmpty())) {
    const size_t at = event.find("data: ");
    EXPECT_NE(at, event.npos) << event;
    const absl::string_view data = event.substr(at + 6);
    if (data != "[DONE]") events.push_back(Json::parse(data));
  }
  return events;
}

Json WithoutIds(Json calls) {
  for (Json& call : calls) {
    EXPECT_EQ(call["id"].get<std::string>().size(), 9);
    call.erase("id");
  }
  return calls;
}

Json WrittenCall(const char* name, const char* arguments) {
  return {{"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

TEST(Tools, AChatTakesTheAnswerApart) {
  const Json whole = Whole("/v1/chat/completions", Chat(), kAnswer);
  const Json& choice = whole["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "I add.");
  EXPECT_EQ(choice["message"]["reasoning_content"], "Two sums.");
  EXPECT_EQ(WithoutIds(choice["message"]["tool_calls"]),
            Json::array({WrittenCall("add", R"({"b": 1, "a": [2]})"), WrittenCall("now", "{}")}));
  EXPECT_EQ(whole["usage"]["completion_tokens_details"]["reasoning_tokens"],
            std::string("Two sums.\n</think>").size());
}

TEST(Tools, AStreamedChatSaysTheSame) {
  std::string content, reasoning;
  Json calls = Json::array(), finish;
  for (const Json& event : Events("/v1/chat/completions", Chat(), kAnswer)) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    const Json& choice = event["choices"][0];
    if (!choice["finish_reason"].is_null()) finish = choice["finish_reason"];
    const Json& delta = choice["delta"];
    content += delta.value("content", "");
    reasoning += delta.value("reasoning_content", "");
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      if (call.contains("id")) {
        EXPECT_EQ(call["index"], calls.size());
        calls.push_back(call);
        calls.back().erase("index");
      } else {
        EXPECT_EQ(call["index"], calls.size() - 1);
        calls.back()["function"]["arguments"].get_ref<std::string&>() +=
            call["function"]["arguments"].get<std::string>();
      }
    }
  }
  EXPECT_EQ(content, "I add.");
  EXPECT_EQ(reasoning, "Two sums.");
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(WithoutIds(calls),
            Json::array({WrittenCall("add", R"({"b": 1, "a": [2]})"), WrittenCall("now", "{}")}));
}

TEST(Tools, ARequiredCallIsMade) {
  // The model would write a text; the form of calls leaves it the names, and the end of its
  // thought.
  const std::string thought = "Two sums.\n</think>\n\n";
  Json body = Chat();
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "now"}}}};
  const Json named = Whole("/v1/chat/completions", body,
                           thought +
                               "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n"
                               "</tool_call>\n<tool_call>");
  const Json& message = named["choices"][0]["message"];
  ASSERT_EQ(message["tool_calls"].size(), 1u);
  EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "now");
  EXPECT_EQ(message["reasoning_content"], "Two sums.");
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(named["choices"][0]["finish_reason"], "tool_calls");
  body["tool_choice"] = "required";
  const Json any =
      Whole("/v1/chat/completions", body,
            thought + "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>");
  EXPECT_EQ(WithoutIds(any["choices"][0]["message"]["tool_calls"]),
            Json::array({WrittenCall("add", "{}")}));
}

TEST(Tools, OnlyAllowedToolsAreCalled) {
  Json body = Chat();
  body["tool_choice"] = {{"type", "allowed_tools"},
                         {"allowed_tools",
                          {{"mode", "required"},
                           {"tools", {{{"type", "function"}, {"function", {{"name", "now"}}}}}}}}};
  const Json whole =
      Whole("/v1/chat/completions", body,
            "</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>");
  for (const Json& call : whole["choices"][0]["message"]["tool_calls"]) {
    EXPECT_EQ(call["function"]["name"], "now");
  }
  body["tool_choice"]["allowed_tools"]["tools"][0]["function"]["name"] = "then";
  const HttpReply reply = ScriptedServer().Post("/v1/chat/completions", body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "tool_choice");
}

TEST(Tools, WithoutToolsNothingIsACall) {
  Json body = Chat();
  body["tool_choice"] = "none";
  const Json none = Whole("/v1/chat/completions", body, kAnswer);
  EXPECT_FALSE(none["choices"][0]["message"].contains("tool_calls"));
  EXPECT_THAT(none["choices"][0]["message"]["content"].get<std::string>(),
              HasSubstr("<tool_call>"));
  EXPECT_EQ(none["choices"][0]["finish_reason"], "stop");
  body.erase("tools");
  body.erase("tool_choice");
  const Json without = Whole("/v1/chat/completions", body, kAnswer);
  EXPECT_EQ(without["usage"]["prompt_tokens"], none["usage"]["prompt_tokens"]);
}

TEST(Tools, OneCallIsEnoughWhereNoneAreParallel) {
  Json body = Chat();
  body["parallel_tool_calls"] = false;
  const Json one = Whole("/v1/chat/completions", body, kAnswer);
  EXPECT_EQ(WithoutIds(one["choices"][0]["message"]["tool_calls"]),
            Json::array({WrittenCall("add", R"({"b": 1, "a": [2]})")}));
  EXPECT_LT(one["usage"]["completion_tokens"], TokensOf(kAnswer).size());
}

TEST(Tools, ThinkingIsSwitchedOff) {
  Json body = Chat();
  body["chat_template_kwargs"] = {{"enable_thinking", false}};
  const Json message = Whole("/v1/chat/completions", body, "Hello.")["choices"][0]["message"];
  EXPECT_EQ(message["content"], "Hello.");
  EXPECT_FALSE(message.contains("reasoning_content"));
}

// The output without what is drawn at random.
Json Output(const Json& response) {
  Json output = response["output"];
  for (Json& item : output) {
    EXPECT_TRUE(item.contains("id"));
    for (const char* name : {"id", "call_id", "status"}) item.erase(name);
    if (item["type"] != "message") continue;
    for (const char* name : {"logprobs", "annotations"}) item["content"][0].erase(name);
  }
  return output;
}

const Json& Items() {
  static const Json items = Json::parse(R"([
      {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text",
       "text": "Two sums."}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text",
       "text": "I add."}]},
      {"type": "function_call", "name": "add", "arguments": "{\"b\": 1, \"a\": [2]}"},
      {"type": "function_call", "name": "now", "arguments": "{}"}])");
  return items;
}

TEST(Tools, AResponseHasItems) {
  const Json whole = Whole("/v1/responses", Response(), kAnswer);
  EXPECT_EQ(Output(whole), Items());
  EXPECT_EQ(whole["tools"], Response()["tools"]);
  EXPECT_GT(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 0);
}

TEST(Tools, AStreamedResponseBuildsThem) {
  const std::vector<Json> events = Events("/v1/responses", Response(), kAnswer);
  Json output = Json::array(), last;
  std::string arguments;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json& event = events[i];
    EXPECT_EQ(event["sequence_number"], i);
    const std::string type = event["type"];
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], output.size());
      output.push_back(event["item"]);
      arguments.clear();
    } else if (type == "response.function_call_arguments.delta") {
      EXPECT_EQ(event["item_id"], output.back()["id"]);
      arguments += event["delta"].get<std::string>();
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], arguments);
    } else if (absl::EndsWith(type, "text.done")) {
      EXPECT_EQ(event["item_id"], output.back()["id"]);
    } else if (type == "response.output_item.done") {
      EXPECT_EQ(event["item"]["id"], output.back()["id"]);
      output.back() = event["item"];
    }
    last = event;
  }
  EXPECT_EQ(last["type"], "response.completed");
  EXPECT_EQ(last["response"]["output"], output);
  EXPECT_EQ(Output(last["response"]), Items());
}

TEST(Tools, AResponseGoesOnWithResultsAndByItems) {
  const auto server = Answering("/v1/responses", Response(), kAnswer);
  const Json first = Json::parse(server->Post("/v1/responses", Response()).body);
  Json results = Json::array();
  for (const Json& item : first["output"]) {
    if (item["type"] != "function_call") continue;
    results.push_back(
        {{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "3"}});
  }
  Json second = Response();
  second["previous_response_id"] = first["id"];
  second["input"] = results;
  second["max_output_tokens"] = 1;
  const HttpReply reply = server->Post("/v1/responses", second);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json usage = Json::parse(reply.body)["usage"];
  EXPECT_EQ(usage["input_tokens_details"]["cached_tokens"], first["usage"]["total_tokens"]);

  // References to the items say the same.
  Json by_items = Response();
  by_items["input"] = Json::array({{{"role", "user"}, {"content", "Add!"}}});
  for (const Json& item : first["output"]) {
    by_items["input"].push_back({{"type", "item_reference"}, {"id", item["id"]}});
  }
  for (const Json& result : results) by_items["input"].push_back(result);
  by_items["max_output_tokens"] = 1;
  const HttpReply again = server->Post("/v1/responses", by_items);
  ASSERT_EQ(again.status, 200) << again.body;
  // The session also has the end-of-sequence token, which this template does not write.
  EXPECT_EQ(Json::parse(again.body)["usage"]["input_tokens"].get<int64_t>() + 1,
            usage["input_tokens"]);

  second["tools"].erase(1);
  const HttpReply other = server->Post("/v1/responses", second);
  EXPECT_EQ(other.status, 400);
  EXPECT_THAT(other.body, HasSubstr("\"param\":\"tools\""));
}

// The number of tokens of a conversation of items that goes on from these.
int64_t TokensAfter(ScriptedServer& server, const Json& items) {
  Json body = Response();
  body["input"] = Json::array({{{"role", "user"}, {"content", "Add!"}}});
  for (const Json& item : items) body["input"].push_back(item);
  body["input"].push_back({{"role", "user"}, {"content", "And?"}});
  body["max_output_tokens"] = 0;
  const HttpReply reply = server.Post("/v1/responses", body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body)["usage"]["input_tokens"].get<int64_t>();
}

TEST(Tools, ReasoningComesBackInEveryFormThatItHas) {
  const auto server = Answering("/v1/responses", Response(), kAnswer);
  const int64_t tokens = TokensAfter(*server, Items());
  Json body = Response();
  body["store"] = false;
  body["include"] = Json::array({"reasoning.encrypted_content"});
  Json plain = Json::parse(server->Post("/v1/responses", body).body)["output"];
  EXPECT_EQ(plain[0]["encrypted_content"], "text:Two sums.");
  EXPECT_EQ(plain[0]["content"][0]["text"], "Two sums.");
  EXPECT_EQ(TokensAfter(*server, plain), tokens);
  plain[0].erase("content");  // as some clients do
  EXPECT_EQ(TokensAfter(*server, plain), tokens);
  plain[0]["encrypted_content"] = "of another service";
  EXPECT_LT(TokensAfter(*server, plain), tokens);

  body["reasoning"] = {{"summary", "auto"}};
  const Json summarized = Json::parse(server->Post("/v1/responses", body).body)["output"];
  EXPECT_EQ(summarized[0]["summary"],
            Json::parse(R"([{"type": "summary_text", "text": "Two sums."}])"));
  EXPECT_FALSE(summarized[0].contains("content"));
  EXPECT_EQ(TokensAfter(*server, summarized), tokens);
}

TEST(Tools, AStreamedSummaryIsBuiltByItsEvents) {
  Json body = Response();
  body["reasoning"] = {{"summary", "auto"}};
  std::string text;
  std::vector<std::string> types;
  for (const Json& event : Events("/v1/responses", body, kAnswer)) {
    const std::string type = event["type"];
    if (!absl::StrContains(type, "reasoning")) continue;
    EXPECT_EQ(event["summary_index"], 0);
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "response.reasoning_summary_text.delta") text += event["delta"].get<std::string>();
    if (absl::EndsWith(type, "part.done")) {
      EXPECT_EQ(event["part"]["text"], text);
    }
  }
  EXPECT_EQ(text, "Two sums.");
  EXPECT_EQ(types,
            (std::vector<std::string>{
                "response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
                "response.reasoning_summary_text.done", "response.reasoning_summary_part.done"}));
}

TEST(Tools, FunctionsOfANamespaceKeepTheirNames) {
  Json body = Response();
  Json& add = body["tools"][0];
  add = {{"type", "namespace"}, {"name", "maths"}, {"tools", Json::array({add})}};
  const std::string answer =
      "x\n</think>\n\n<tool_call>\n{\"name\": \"maths__add\", \"arguments\": {}}\n</tool_call>";
  const auto server = Answering("/v1/responses", body, answer);
  const Json response = Json::parse(server->Post("/v1/responses", body).body);
  const Json& call = response["output"][1];
  EXPECT_EQ(call["name"], "add");
  EXPECT_EQ(call["namespace"], "maths");
  Json flat = call;
  flat["name"] = "maths__add";
  flat.erase("namespace");
  EXPECT_EQ(TokensAfter(*server, Json::array({call})), TokensAfter(*server, Json::array({flat})));

  const auto refused = [&](const Json& tool, const char* why) {
    body["tools"] = Json::array({tool});
    const HttpReply reply = server->Post("/v1/responses", body);
    EXPECT_EQ(reply.status, 400);
    EXPECT_THAT(reply.body, HasSubstr(why));
  };
  refused(
      {{"type", "web_search"}},
      "tools[0]: not served here; expected a tool of type function or namespace, got web_search");
  refused({{"type", "namespace"}, {"tools", Json::array()}}, "tools[0].name");
  refused({{"type", "namespace"}, {"name", "a"}, {"tools", 3}}, "tools[0].tools");
  refused(
      {{"type", "namespace"}, {"name", "a"}, {"tools", Json::array({Json{{"type", "namespace"}}})}},
      "tools[0].tools[0]");
  refused({{"type", "function"}, {"name", "a"}, {"defer_loading", true}}, "tools[0].defer_loading");
}

TEST(Tools, WhatClientsMakeOfAnswersComesBack) {
  const auto server = Answering("/v1/responses", Response(), kAnswer);
  const int64_t tokens = TokensAfter(*server, Items());
  Json items = Items();
  items[1]["content"][0]["parsed"] = nullptr;
  items[2]["parsed_arguments"] = {{"b", 1}};
  items[2]["caller"] = {{"type", "direct"}};
  EXPECT_EQ(TokensAfter(*server, items), tokens);
  Json chat = Chat();
  Json call = WrittenCall("add", "{}");
  call["function"]["parsed_arguments"] = Json::object();
  chat["messages"].push_back({{"role", "assistant"},
                              {"content", ""},
                              {"parsed", nullptr},
                              {"tool_calls", Json::array({call})}});
  chat["messages"][1]["parsed"] = {{"x", 1}};
  chat["max_tokens"] = 0;
  EXPECT_EQ(server->Post("/v1/chat/completions", chat).status, 200);
}

Json AnthropicTurn() {
  Json body = {{"max_tokens", 500},
               {"messages", {{{"role", "user"}, {"content", "Add!"}}}},
               {"tools", Json::array()}};
  for (const char* name : {"add", "now"}) {
    body["tools"].push_back({{"name", name}, {"input_schema", {{"type", "object"}}}});
  }
  return body;
}

Json Blocks(Json blocks) {
  for (Json& block : blocks) {
    if (block["type"] != "tool_use") continue;
    EXPECT_EQ(block["id"].get<std::string>().size(), 9);
    block.erase("id");
  }
  return blocks;
}

const Json& AnswerBlocks() {
  static const Json blocks = Json::parse(R"([
      {"type": "thinking", "thinking": "Two sums.", "signature": ""},
      {"type": "text", "text": "I add."},
      {"type": "tool_use", "name": "add", "input": {"b": 1, "a": [2]}},
      {"type": "tool_use", "name": "now", "input": {}}])");
  return blocks;
}

TEST(Tools, AMessageHasBlocks) {
  const Json whole = Whole("/v1/messages", AnthropicTurn(), kAnswer);
  EXPECT_EQ(whole["type"], "message");
  EXPECT_EQ(whole["stop_reason"], "tool_use");
  EXPECT_EQ(Blocks(whole["content"]), AnswerBlocks());
  EXPECT_EQ(whole["usage"]["output_tokens"], TokensOf(kAnswer).size() + 1);
}

TEST(Tools, AStreamedMessageBuildsThem) {
  Json content = Json::array();
  std::string arguments;
  std::vector<std::string> types;
  for (const Json& event : Events("/v1/messages", AnthropicTurn(), kAnswer)) {
    const std::string type = event["type"];
    if (types.empty() || types.back() != type) types.push_back(type);
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], content.size());
      content.push_back(event["content_block"]);
    } else if (type == "content_block_delta") {
      const Json& delta = event["delta"];
      if (delta["type"] == "input_json_delta") {
        arguments += delta["partial_json"].get<std::string>();
      } else {
        const std::string field = delta["type"] == "text_delta" ? "text" : "thinking";
        content.back()[field].get_ref<std::string&>() += delta[field].get<std::string>();
      }
    } else if (type == "content_block_stop" && !arguments.empty()) {
      content.back()["input"] = Json::parse(std::exchange(arguments, ""));
    } else if (type == "message_delta") {
      EXPECT_EQ(event["delta"]["stop_reason"], "tool_use");
    }
  }
  EXPECT_EQ(types.front(), "message_start");
  EXPECT_EQ(types.back(), "message_stop");
  EXPECT_EQ(Blocks(content), AnswerBlocks());
}

TEST(Tools, MessagesCarryResultsOfTools) {
  Json body = AnthropicTurn();
  const auto server = Answering("/v1/messages", body, kAnswer);
  const Json first = Json::parse(server->Post("/v1/messages", body).body);
  Json results = Json::array();
  for (const Json& block : first["content"]) {
    if (block["type"] != "tool_use") continue;
    results.push_back({{"type", "tool_result"},
                       {"tool_use_id", block["id"]},
                       {"content", {{{"type", "text"}, {"text", "3"}}}}});
  }
  results.push_back(
      {{"type", "text"}, {"text", "And?"}, {"cache_control", {{"type", "ephemeral"}}}});
  body["messages"].push_back({{"role", "assistant"}, {"content", first["content"]}});
  body["messages"].push_back({{"role", "user"}, {"content", results}});
  // A chat that says the same has the same tokens.
  Json chat = Chat();
  const auto call = [](const char* name, const char* arguments) {
    return Json{{"function", {{"name", name}, {"arguments", arguments}}}};
  };
  chat["messages"].push_back(
      {{"role", "assistant"},
       {"reasoning_content", "Two sums."},
       {"content", "I add."},
       {"tool_calls", {call("add", R"({"b": 1, "a": [2]})"), call("now", "{}")}}});
  for (int i = 0; i < 2; ++i) chat["messages"].push_back({{"role", "tool"}, {"content", "3"}});
  chat["messages"].push_back({{"role", "user"}, {"content", "And?"}});
  chat["max_tokens"] = 1;
  body["max_tokens"] = 1;
  const Json usage = Json::parse(server->Post("/v1/messages", body).body)["usage"];
  const int64_t tokens =
      usage["input_tokens"].get<int64_t>() + usage["cache_read_input_tokens"].get<int64_t>();
  EXPECT_EQ(tokens,
            Json::parse(server->Post("/v1/chat/completions", chat).body)["usage"]["prompt_tokens"]);
  body.erase("max_tokens");
  EXPECT_EQ(Json::parse(server->Post("/v1/messages/count_tokens", body).body)["input_tokens"],
            tokens);
}

int64_t MessageTokens(ScriptedServer& server, const Json& body) {
  const HttpReply reply = server.Post("/v1/messages", body);
  EXPECT_EQ(reply.status, 200) << reply.body;
  const Json usage = Json::parse(reply.body)["usage"];
  return usage["input_tokens"].get<int64_t>() + usage["cache_read_input_tokens"].get<int64_t>();
}

// Claude Code sends both kinds.
TEST(Tools, SystemMessagesAndEditsThatKeepAllAreServed) {
  ScriptedServer server;
  Json body = AnthropicTurn();
  body["max_tokens"] = 1;
  body["messages"].push_back({{"role", "system"},
                              {"content", {{{"type", "text"}, {"text", "Be brief."}}}},
                              {"output_config", {{"effort", "low"}}}});
  body["messages"].push_back({{"role", "assistant"}, {"content", "Yes."}});
  body["messages"].push_back({{"role", "user"}, {"content", "And?"}});
  body["messages"].push_back({{"role", "system"}, {"content", "Be kind."}});
  body["context_management"] =
      Json::parse(R"({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})");
  Json chat = Chat();
  const std::pair<const char*, const char*> further[] = {
      {"system", "Be brief."}, {"assistant", "Yes."}, {"user", "And?"}, {"system", "Be kind."}};
  for (const auto& [role, content] : further) {
    chat["messages"].push_back({{"role", role}, {"content", content}});
  }
  chat["max_tokens"] = 1;
  EXPECT_EQ(MessageTokens(server, body),
            Json::parse(server.Post("/v1/chat/completions", chat).body)["usage"]["prompt_tokens"]);
}

// Claude Code's first line about billing is another one in every request.
TEST(Tools, AnAgentsNextMessageIsReadFromTheCache) {
  const std::string billing = "x-anthropic-billing-header: cc_version=2.1; cch=";
  const std::string system = "You write code." + std::string(400, 's');
  Json body = AnthropicTurn();
  body.erase("tools");
  body["max_tokens"] = 1;
  body["system"] = system;
  ScriptedServer server;
  const int64_t tokens = MessageTokens(server, body);
  const auto ask = [&](const Json& changed) {
    body["system"] = changed;
    const Json usage = Json::parse(server.Post("/v1/messages", body).body)["usage"];
    const int64_t cached = usage["cache_read_input_tokens"];
    EXPECT_EQ(usage["input_tokens"].get<int64_t>() + cached, tokens) << changed;
    EXPECT_GT(cached, 300) << changed;
  };
  const auto block = [](const std::string& text) { return Json{{"type", "text"}, {"text", text}}; };
  for (const char* number : {"36ee5;", "1;"}) {
    ask(billing + number + "\n" + system);
    ask(Json::array({block(billing + number), block(system)}));
    ask(Json::array(
        {block("You write code."), block(billing + number + "\nx"), block(system.substr(15))}));
  }
  // Nothing else is left of it.
  body.erase("system");
  const int64_t without = MessageTokens(server, body);
  for (const Json& only : {Json(billing + "1;"), Json::array({block(billing + "2;")})}) {
    body["system"] = only;
    EXPECT_EQ(MessageTokens(server, body), without) << only;
  }
  body["system"] = "Not " + billing;
  EXPECT_GT(MessageTokens(server, body), without + static_cast<int64_t>(billing.size()));
}

// A template would write the beginning of an answer as a whole one.
TEST(Tools, AnAnswerThatAMessageBeginsIsRefused) {
  ScriptedServer server;
  Json body = AnthropicTurn();
  body["max_tokens"] = 1;
  body["messages"].push_back({{"role", "assistant"}, {"content", "{"}});
  const HttpReply reply = server.Post("/v1/messages", body);
  EXPECT_EQ(reply.status, 400) << reply.body;
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["param"], "messages");
  EXPECT_THAT(error["message"].get<std::string>(),
              HasSubstr("does not support assistant message prefill"));
  body["messages"].push_back({{"role", "system"}, {"content", "Go on."}});
  EXPECT_EQ(server.Post("/v1/messages", body).status, 200);
  body["messages"].erase(2);
  body.erase("max_tokens");
  EXPECT_EQ(server.Post("/v1/messages/count_tokens", body).status, 200);
}

TEST(Tools, MessagesThatAreNotServedAreRefused) {
  ScriptedServer server;
  const auto refused = [&](const char* change, const char* why) {
    Json body = AnthropicTurn();
    body.merge_patch(Json::parse(change));
    const HttpReply reply = server.Post("/v1/messages", body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(Json::parse(reply.body)["type"], "error");
    EXPECT_THAT(reply.body, HasSubstr(why));
  };
  refused(R"({"max_tokens": null})", "max_tokens: expected a number of tokens, got none");
  refused(R"({"messages": [{"role": "critic", "content": "x"}]})",
          "messages[0].role: expected user, assistant or system, got 'critic'");
  refused(R"({"messages": [{"role": "system", "content": [{"type": "image"}]}]})",
          "messages[0].content");
  for (const char* edits :
       {R"([{"type": "clear_thinking_20251015"}])",
        R"([{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}])",
        R"([{"type": "clear_thinking_20251015", "keep": "all"},
            {"type": "clear_tool_uses_20250919", "keep": "all"}])",
        R"([{"type": "clear_thinking_20251015", "keep": "all", "more": 1}])", "3"}) {
    refused(absl::StrCat(R"({"context_management": {"edits": )", edits, "}}").c_str(),
            "context_management: not served here");
  }
  refused(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
          "messages[0].content[0].type: expected text or tool_result, got image");
  refused(R"({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})", "tools[0].type");
  refused(R"({"tool_choice": {"type": "tool", "name": "sub"}})", "tool_choice");
  refused(R"({"tool_choice": {"type": "tool"}})", "tool_choice.name: expected a tool's name");
  refused(R"({"thinking": {"type": "perhaps"}})", "thinking.type");
  refused(R"({"nonsense": 1})", "nonsense");
  refused(R"({"output_config": {"format": {"type": "json_schema"}}})", "output_config.format");
  // The package of Anthropic sends whole conversations from then on.
  refused(R"({"thread": {"type": "create"}})",
          R"("details":{"error_code":"thread_unsupported_request"})");
}

TEST(Tools, MessagesHaveTheirOwnNameOfARequestsId) {
  ScriptedServer server;
  Json body = AnthropicTurn();
  body["max_tokens"] = 0;
  body["output_config"] = {{"effort", "low"}};
  for (const char* target : {"/v1/messages", "/v1/chat/completions"}) {
    std::string id, theirs;
    for (const auto& [name, value] : server.Post(target, body).headers) {
      if (name == "x-request-id") id = value;
      if (name == "request-id") theirs = value;
    }
    EXPECT_FALSE(id.empty());
    EXPECT_EQ(theirs, absl::StrContains(target, "messages") ? id : "");
  }
}

}  // namespace
}  // namespace ovq::server::test
