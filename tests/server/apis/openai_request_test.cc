// Requests of OpenAI's API as messages: fields that are honoured, refused by name, or skipped.
#include "server/apis/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/apis/anthropic_request.h"
#include "server/apis/response_request.h"
#include "server/engine/common/error_facts.h"
#include "server/http/http_errors.h"

namespace ovq::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<OpenAiRequest> Completion(const char* body) {
  return ReadCompletion(Json::parse(body), {"m"});
}
absl::StatusOr<OpenAiRequest> ParseChat(const char* body) {
  return ReadChat(Json::parse(body), {"m"});
}

absl::StatusOr<ResponseRequest> Response(const Json& body) {
  return ReadResponse(body, {"m"}, [](const std::string& id) -> absl::StatusOr<Json> {
    if (id != "msg_1") return NoResponse("input.id", nullptr);
    return Json{{"type", "message"},
                {"id", id},
                {"role", "assistant"},
                {"status", "completed"},
                {"content",
                 {{{"type", "output_text"}, {"text", "stored"}, {"annotations", Json::array()}}}}};
  });
}

TEST(OpenAiRequests, ACompletionWithEverything) {
  const auto read = Completion(R"({"model": "m", "prompt": [1, 2], "max_tokens": 7, "stream": true,
      "temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125, "typical_p": 0.75,
      "repetition_penalty": 2, "presence_penalty": 1, "frequency_penalty": -1, "seed": -1, "n": 2,
      "best_of": 2, "stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": true, "min_tokens": 2,
      "include_stop_str_in_output": true, "logit_bias": {"5": 1.5}, "logprobs": 3, "user": "u",
      "stream_options": {"include_usage": true}, "suffix": null, "echo": false,
      "cache_prompt": true, "memory": "exact", "max_centroids": 64})");
  ASSERT_TRUE(read.ok()) << read.status();
  v1::GenerateRequest expected;
  expected.mutable_prompt()->set_cacheable(true);
  v1::SamplingParams& sampling = *expected.mutable_sampling();
  sampling.set_temperature(0.5);
  sampling.set_top_p(0.25);
  sampling.set_min_p(0.125);
  sampling.set_typical_p(0.75);
  sampling.set_repetition_penalty(2);
  sampling.set_presence_penalty(1);
  sampling.set_frequency_penalty(-1);
  sampling.set_seed(~uint64_t{0});
  sampling.set_n(2);
  (*sampling.mutable_logit_bias())[5] = 1.5;
  v1::StopConditions& stop = *expected.mutable_stop();
  stop.set_max_tokens(7);
  stop.add_stop_strings("a");
  stop.add_stop_strings("b");
  stop.add_stop_token_ids(3);
  stop.set_ignore_eos(true);
  stop.set_min_tokens(2);
  stop.set_include_stop_text(true);
  expected.mutable_output()->set_logprobs(true);
  expected.mutable_output()->set_top_logprobs(3);
  expected.set_memory("exact");
  expected.set_max_centroids(64);
  EXPECT_EQ(read->message.SerializeAsString(), expected.SerializeAsString())
      << read->message.DebugString();
  ASSERT_EQ(read->prompts.size(), 1u);
  EXPECT_THAT(read->prompts[0].token_ids().ids(), ElementsAre(1, 2));
  EXPECT_TRUE(read->stream && read->include_usage && !read->continuous_usage && !read->echo);
}

TEST(OpenAiRequests, ZeroIsAValueAndAbsentIsNone) {
  const auto read = Completion(R"({"prompt": "x", "temperature": 0, "seed": 0, "top_p": null})");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->message.sampling().has_temperature());
  EXPECT_TRUE(read->message.sampling().has_seed());
  EXPECT_FALSE(read->message.sampling().has_top_p());
  EXPECT_EQ(read->message.stop().max_tokens(), kDefaultCompletionTokens);
}

TEST(OpenAiRequests, AChat) {
  const auto read = ParseChat(R"({"messages": [{"role": "system", "content": "s", "name": "n"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
      "max_tokens": 3, "max_completion_tokens": 4, "tools": [], "response_format":
      {"type": "text"}})");
  ASSERT_TRUE(read.ok()) << read.status();
  const v1::Prompt& prompt = read->message.prompt();
  EXPECT_FALSE(prompt.has_cacheable()) << "a conversation's default";
  ASSERT_EQ(prompt.conversation().messages_size(), 2);
  EXPECT_EQ(prompt.conversation().messages(1).content(), "ab");
  EXPECT_EQ(read->message.stop().max_tokens(), 4);
}

struct Refusal {
  const char* body;
  const char* field;
};
TEST(OpenAiRequests, MessagesCarryCallsResultsAndReasoning) {
  const auto read = ParseChat(R"({"messages": [
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "content": null, "reasoning_content": "why", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
      {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "add"}],
      "chat_template_kwargs": {"enable_thinking": false}})");
  ASSERT_TRUE(read.ok()) << read.status();
  v1::Conversation expected;
  v1::ChatMessage& user = *expected.add_messages();
  user.set_role("user");
  user.set_content("Hi");
  v1::ChatMessage& answer = *expected.add_messages();
  answer.set_role("assistant");
  answer.set_reasoning("why");
  v1::ToolCall& call = *answer.add_tool_calls();
  call.set_id("c1");
  call.set_name("add");
  call.set_arguments_json(R"({"a": 1})");
  v1::ChatMessage& result = *expected.add_messages();
  result.set_role("tool");
  result.set_content("3");
  result.set_tool_call_id("c1");
  result.set_name("add");
  expected.set_template_args_json(R"({"enable_thinking":false})");
  EXPECT_EQ(read->message.prompt().conversation().DebugString(), expected.DebugString());

  const std::string message = R"({"messages": [{"role": "assistant", "tool_calls": )";
  EXPECT_THAT(ParseChat((message + "3}]}").c_str()).status().message(),
              HasSubstr("messages[0].tool_calls: expected a list of calls, got 3"));
  EXPECT_THAT(ParseChat((message + "[{}]}]}").c_str()).status().message(),
              HasSubstr("messages[0].tool_calls[0]: expected an object with a function"));
  EXPECT_THAT(ParseChat((message + R"([{"function": {"name": 1}}]}]})").c_str()).status().message(),
              HasSubstr("messages[0].tool_calls[0].function.name: expected a text, got 1"));
  EXPECT_THAT(ParseChat(R"({"messages": [], "chat_template_kwargs": []})").status().message(),
              HasSubstr("chat_template_kwargs: expected an object"));
}

// Clients send fields that nobody set as null, "", [], {} or objects of such values.
TEST(OpenAiRequests, AFieldThatSaysNothingIsAbsent) {
  for (const char* name : {"tools", "tool_choice", "functions", "response_format", "audio",
                           "verbosity", "structured_outputs", "documents", "modalities"}) {
    for (const char* value : {"null", "\"\"", "[]", "{}", R"({"a": null, "b": {"c": []}})"}) {
      const std::string body = std::string(R"({"messages": [], ")") + name + "\": " + value + "}";
      EXPECT_TRUE(ParseChat(body.c_str()).ok()) << body << ParseChat(body.c_str()).status();
    }
    const std::string body = std::string(R"({"messages": [], ")") + name + R"(": {"a": 0}})";
    EXPECT_THAT(ParseChat(body.c_str()).status().message(), HasSubstr(name)) << body;
  }
  for (const char* text : {"{}", R"({"format": null})", R"({"format": {"type": "text"}})"}) {
    const std::string body = std::string(R"({"input": "Hi", "text": )") + text + "}";
    EXPECT_TRUE(Response(Json::parse(body)).ok()) << body;
  }
}

TEST(OpenAiRequests, WhatIsRefusedIsNamed) {
  for (const auto& [body, field] : {
           Refusal{R"({"prompt": "x", "echo": 1})", "echo"},
           Refusal{R"({"prompt": ["x", 1]})", "prompt[1]"},
           Refusal{R"({"prompt": [[1], []]})", "prompt[1]"},
           Refusal{R"({"prompt": [[1], [1, -1]]})", "prompt[1]"},
           Refusal{R"({"prompt": "x", "n": 2, "best_of": 3})", "best_of"},
           Refusal{R"({"prompt": "x", "n": 2, "best_of": 3})", "best_of"},
           Refusal{R"({"prompt": "x", "guided_regex": 1})", "guided_regex"},
           Refusal{R"({"prompt": "x", "temperature": "hot"})", "temperature"},
           Refusal{R"({"prompt": "x", "max_tokens": 1.5})", "max_tokens"},
           Refusal{R"({"prompt": "x", "max_tokens": 4294967296})", "max_tokens"},
           Refusal{R"({"prompt": "x", "logit_bias": {"-1": 1}})", "logit_bias"},
           Refusal{R"({"prompt": "x", "stream_options": {"include_usage": true}})",
                   "stream_options"},
           Refusal{R"({"prompt": {"a": 1}})", "prompt"},
           Refusal{R"({"prompt": []})", "prompt"},
           Refusal{R"({"prompt": [1, -1]})", "prompt"},
           Refusal{R"({"prompt": "x", "nonsense": 1})", "nonsense"},
           Refusal{R"({"prompt": "x", "non sense": 1})", "'non sense'"},
           Refusal{R"({"prompt": "x", "model": "other"})", "model"},
       }) {
    const absl::Status status = Completion(body).status();
    EXPECT_EQ(engine::GetErrorFacts(status).field, field) << body << ": " << status;
    EXPECT_EQ(ErrorObject(status)["error"]["param"], field);
  }
}

TEST(OpenAiRequests, AListThatIsTooLongHasItsOwnName) {
  Json stops = {{"prompt", "x"}}, biases = stops;
  for (int i = 0; i < 17; ++i) stops["stop"].push_back("x");
  for (int i = 0; i < 4097; ++i) biases["logit_bias"][std::to_string(i)] = 1;
  EXPECT_EQ(ReadCompletion(stops, {"m"}).status().message(), "stop: expected at most 16, got 17");
  EXPECT_EQ(ReadCompletion(biases, {"m"}).status().message(),
            "logit_bias: expected at most 4096, got 4097");
}

TEST(OpenAiRequests, FieldsAreRenamedWithTheirMessages) {
  const absl::Status status = engine::BadField("token_ids[3]", "a token id", 7);
  const absl::Status renamed = RenameField(status, "token_ids", "tokens");
  EXPECT_EQ(renamed.message(), "tokens[3]: expected a token id, got 7");
  EXPECT_EQ(engine::GetErrorFacts(renamed).field, "tokens[3]");
  EXPECT_EQ(RenameField(status, "text", "prompt").message(), status.message());
}

TEST(OpenAiRequests, ErrorsOfTheEngineAreInTheirWords) {
  const auto in_words = [](const char* field, OpenAiApi api) {
    const absl::Status status =
        ToOpenAiError(engine::BadField(field, "something", "nothing"), {.api = api});
    EXPECT_THAT(std::string(status.message()),
                testing::StartsWith(engine::GetErrorFacts(status).field + ":"));
    return engine::GetErrorFacts(status).field;
  };
  EXPECT_EQ(in_words("sampling.top_p", OpenAiApi::kCompletions), "top_p");
  EXPECT_EQ(in_words("output.top_logprobs", OpenAiApi::kCompletions), "logprobs");
  EXPECT_EQ(in_words("output.top_logprobs", OpenAiApi::kChat), "top_logprobs");
  EXPECT_EQ(in_words("prompt.conversation.messages[3].role", OpenAiApi::kChat), "messages[3].role");
  EXPECT_EQ(in_words("prompt.conversation.messages[3].tool_calls[1].name", OpenAiApi::kChat),
            "messages[3].tool_calls[1].function.name");
  EXPECT_EQ(in_words("conversation.messages", OpenAiApi::kChat), "messages");
  EXPECT_EQ(in_words("stop.stop_strings[2]", OpenAiApi::kChat), "stop[2]");
}

// The request's name of a field of the engine's.
std::string FieldInTheirs(const std::string& ours, const OpenAiRequest& request) {
  const absl::Status status = engine::BadField(ours, "something", "nothing");
  return engine::GetErrorFacts(ToOpenAiError(status, CallerNames(request))).field;
}

TEST(OpenAiRequests, ErrorsNameItemsOfResponsesByTheirPlace) {
  const Json body = {{"instructions", "Be brief."}, {"input", Json::parse(R"([
      {"role": "user", "content": "x"},
      {"type": "reasoning", "summary": [{"text": "hm"}]},
      {"type": "function_call", "name": "a", "call_id": "1", "arguments": "{}"},
      {"type": "function_call", "name": "b", "call_id": "2", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "1", "output": "y"}])")}};
  const auto request = ReadResponse(body, {"m"}, nullptr);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto field = [&](const char* ours) {
    return FieldInTheirs(absl::StrCat("prompt.conversation.", ours), *request);
  };
  EXPECT_EQ(field("messages[0].content"), "instructions.content");
  EXPECT_EQ(field("messages[1].role"), "input[0].role");
  EXPECT_EQ(field("messages[2].tool_calls"), "input[2].tool_calls");
  EXPECT_EQ(field("messages[2].tool_calls[1].name"), "input[3].name");
  EXPECT_EQ(field("messages[2].tool_calls[0].id"), "input[2].call_id");
  EXPECT_EQ(field("messages[3].tool_call_id"), "input[4].call_id");
  EXPECT_EQ(field("messages"), "input");
}

TEST(OpenAiRequests, ErrorsNameBlocksOfAnthropicsMessagesByTheirPlace) {
  const Json body = Json::parse(R"({"max_tokens": 1, "system": "Be brief.", "messages": [
      {"role": "user", "content": "x"},
      {"role": "assistant", "content": [{"type": "text", "text": "y"},
                                        {"type": "tool_use", "id": "1", "name": "a", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "z"},
                                   {"type": "text", "text": "and"}]}]})");
  const auto request = ReadMessagesRequest(body, {"m"}, /*counts=*/false);
  ASSERT_TRUE(request.ok()) << request.status();
  const auto field = [&](const char* ours) {
    return FieldInTheirs(absl::StrCat("conversation.", ours), *request);
  };
  EXPECT_EQ(field("messages[0].role"), "system.role");
  EXPECT_EQ(field("messages[1].role"), "messages[0].role");
  EXPECT_EQ(field("messages[2].tool_calls[0].name"), "messages[1].content[1].name");
  EXPECT_EQ(field("messages[3].tool_call_id"), "messages[2].content[0].tool_use_id");
  EXPECT_EQ(field("messages[4].role"), "messages[2].role");
}

TEST(HttpErrors, StatusesAndHeaders) {
  EXPECT_EQ(ToHttpStatus(absl::FailedPreconditionError("busy")), 409);
  EXPECT_EQ(ToHttpStatus(engine::WithFacts(absl::FailedPreconditionError("no template"),
                                           {.field = "messages"})),
            400);
  const absl::Status limited = engine::WithFacts(
      absl::ResourceExhaustedError("later"),
      {.reason = engine::RejectReason::kTenantRequests, .retry_after = absl::Milliseconds(1200)});
  HttpHeaders headers;
  AddErrorHeaders(limited, headers);
  EXPECT_THAT(headers,
              ElementsAre(std::pair("Retry-After", "2"), std::pair("Retry-After-Ms", "1200")));
  const Json error = ErrorObject(limited)["error"];
  EXPECT_EQ(error["code"], "tenant_requests");
  EXPECT_EQ(error["type"], "rate_limit_error");
  EXPECT_EQ(error["status"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(error["info"]["reason"], "tenant_requests");
}

constexpr char kSession[] = "key.00112233445566778899aabbccddeeff";

TEST(ResponseRequests, GoOnFromAResponse) {
  EXPECT_EQ(ResponseSessionId(ResponseId(kSession)), kSession);
  for (const char* id : {"", "resp_", "resp_x", kSession})
    EXPECT_EQ(ResponseSessionId(id), std::nullopt);
  Json body = {{"input", "hi"}, {"previous_response_id", ResponseId(kSession)}};
  const auto read = Response(body);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->previous, kSession);
  EXPECT_EQ(read->message.prompt().conversation().messages_size(), 1);
  body["previous_response_id"] = "resp_x";
  EXPECT_EQ(ToHttpStatus(Response(body).status()), 404);
  body = {
      {"input", "hi"}, {"instructions", "be brief"}, {"text", {{"format", {{"type", "json"}}}}}};
  EXPECT_EQ(engine::GetErrorFacts(Response(body).status()).field, "text.format.type");
  body.erase("text");
  EXPECT_EQ(Response(body)->message.prompt().conversation().messages(0).role(), "system");
}

TEST(OpenAiRequests, ToolsReachTheTemplateInTheirOrder) {
  const std::string tool = R"({"type": "function", "function": {"name": "add", "strict": true,
      "description": "Adds.", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}})";
  const auto read = [&](const std::string& rest) {
    return ParseChat((R"({"messages": [], "tools": [)" + tool + "]" + rest + "}").c_str());
  };
  const auto conversation = [&](const std::string& rest) {
    return read(rest)->message.prompt().conversation();
  };
  EXPECT_EQ(conversation("").tools_json(),
            R"([{"type":"function","function":{"name":"add","description":"Adds.",)"
            R"("parameters":{"type":"object","properties":{"b":{},"a":{}}},"strict":true}}])");
  EXPECT_EQ(conversation("").tool_choice(), v1::TOOL_CHOICE_AUTO);
  EXPECT_EQ(conversation(R"(, "tool_choice": "none")").tool_choice(), v1::TOOL_CHOICE_NONE);
  EXPECT_EQ(conversation(R"(, "tool_choice": "required")").tool_choice(), v1::TOOL_CHOICE_REQUIRED);
  EXPECT_EQ(conversation(R"(, "tool_choice": {"type": "function", "function": {"name": "add"}})")
                .tool_name(),
            "add");
  EXPECT_TRUE(read("")->message.output().parts());
  EXPECT_FALSE(read("")->message.output().single_call());
  EXPECT_TRUE(read(R"(, "parallel_tool_calls": false)")->message.output().single_call());
  EXPECT_EQ(conversation(R"(, "reasoning_effort": "none")").template_args_json(),
            R"({"reasoning_effort":"none","enable_thinking":false})");
  for (const auto& [body, field] :
       {Refusal{R"({"messages": [], "tools": [{"type": "web_search"}]})", "tools[0]"},
        Refusal{R"({"messages": [], "tools": [3]})", "tools[0]"},
        Refusal{R"({"messages": [], "tools": "x"})", "tools"},
        Refusal{R"({"messages": [], "tools": [{"type": "function", "function": {}}]})",
                "tools[0].function.name"},
        Refusal{R"({"messages": [], "tool_choice": "required"})", "tool_choice"},
        Refusal{R"({"messages": [], "tool_choice": "perhaps"})", "tool_choice"}}) {
    EXPECT_EQ(engine::GetErrorFacts(ParseChat(body).status()).field, field) << body;
  }
}

TEST(OpenAiRequests, FormsOfAnswers) {
  struct Form {
    const char* fields;
    const char* constraint;  // as the message has it
    const char* field;
  };
  const auto shown = [](const absl::StatusOr<OpenAiRequest>& read) {
    EXPECT_TRUE(read.ok()) << read.status();
    return read->message.sampling().constraint().ShortDebugString();
  };
  for (const auto& [fields, constraint, field] : {
           Form{R"("response_format": {"type": "json_object"})", "json_object: true",
                "response_format"},
           Form{R"("response_format": {"type": "json_schema", "json_schema": {"name": "n",
                   "strict": false, "schema": {"b": 1, "a": 2}}})",
                R"(json_schema: "{\"b\":1,\"a\":2}")", "response_format.json_schema.schema"},
           Form{R"("response_format": {"type": "json_object", "schema": {"type": "null"}})",
                R"(json_schema: "{\"type\":\"null\"}")", "response_format.schema"},
           Form{R"("structured_outputs": {"json": "{}"})", R"(json_schema: "{}")",
                "structured_outputs.json"},
           Form{R"("structured_outputs": {"regex": "a+", "choice": null})", R"(regex: "a+")",
                "structured_outputs.regex"},
           Form{R"("structured_outputs": {"json_object": true})", "json_object: true",
                "structured_outputs.json_object"},
           Form{R"("structured_outputs": {"grammar": "root ::= \"a\""})",
                R"(grammar: "root ::= \"a\"")", "structured_outputs.grammar"},
           Form{R"("guided_choice": ["a", "b"])", R"(choice { texts: "a" texts: "b" })",
                "guided_choice"},
           Form{R"("guided_json": {"type": "null"})", R"(json_schema: "{\"type\":\"null\"}")",
                "guided_json"},
           Form{R"("guided_regex": "b")", R"(regex: "b")", "guided_regex"},
           Form{R"("guided_grammar": "g")", R"(grammar: "g")", "guided_grammar"},
           Form{R"("grammar": "g")", R"(grammar: "g")", "grammar"},
           Form{R"("json_schema": {"type": "null"})", R"(json_schema: "{\"type\":\"null\"}")",
                "json_schema"},
       }) {
    const auto chat = ParseChat((std::string(R"({"messages": [], )") + fields + "}").c_str());
    EXPECT_EQ(shown(chat), constraint) << fields;
    EXPECT_EQ(chat->constraint_field, field) << fields;
    const auto completion = Completion((std::string(R"({"prompt": "", )") + fields + "}").c_str());
    EXPECT_EQ(shown(completion), constraint) << fields;
  }
  const Json format = {{"type", "json_schema"}, {"name", "n"}, {"schema", {{"type", "null"}}}};
  const auto response = Response({{"input", "Hi"}, {"text", {{"format", format}}}});
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->message.sampling().constraint().json_schema(), R"({"type":"null"})");
  EXPECT_EQ(response->constraint_field, "text.format.schema");
  EXPECT_EQ(response->shown["text"]["format"], format);
}

TEST(OpenAiRequests, FormsThatSayNothingClearAreRefused) {
  for (const auto& [fields, field] : {
           Refusal{R"("response_format": {"type": "xml"})", "response_format.type"},
           Refusal{R"("response_format": 3)", "response_format"},
           Refusal{R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
           Refusal{R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
                   "response_format.json_schema.schema"},
           Refusal{R"("response_format": {"type": "json_object"}, "guided_regex": "a")",
                   "guided_regex"},
           Refusal{R"("structured_outputs": {"json": 3})", "structured_outputs.json"},
           Refusal{R"("structured_outputs": {"structural_tag": "x"})",
                   "structured_outputs.structural_tag"},
           Refusal{R"("guided_choice": "a")", "guided_choice"},
           Refusal{R"("guided_choice": ["a", 1])", "guided_choice"},
       }) {
    const absl::Status status =
        ParseChat((std::string(R"({"messages": [], )") + fields + "}").c_str()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_EQ(engine::GetErrorFacts(status).field, field) << fields << status;
  }
}

TEST(ResponseRequests, ItemsAreMessages) {
  const Json body = Json::parse(R"({"input": [
      {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": null,
       "content": [{"type": "reasoning_text", "text": "why"}], "status": "completed"},
      {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "add",
       "arguments": "{\"a\": 1}", "status": "completed"},
      {"type": "function_call", "call_id": "c2", "name": "now", "arguments": ""},
      {"type": "function_call_output", "call_id": "c1", "output": "3"},
      {"type": "function_call_output", "call_id": "c2",
       "output": [{"type": "input_text", "text": "noon"}]},
      {"type": "item_reference", "id": "msg_1"},
      {"type": "agent_message", "id": "amsg_1", "author": "/root/worker", "recipient": "/root",
       "content": [{"type": "input_text", "text": "do"}, {"type": "input_text", "text": "ne"}]},
      {"type": "message", "role": "user", "content": "And?"}],
      "include": ["reasoning.encrypted_content"], "client_metadata": {"a": "b"},
      "tools": [{"type": "function", "name": "add", "parameters": {}, "strict": null}],
      "tool_choice": {"type": "function", "name": "add"},
      "reasoning": {"effort": "low", "summary": "auto"}})");
  const auto read = Response(body);
  ASSERT_TRUE(read.ok()) << read.status();
  v1::Conversation expected;
  const auto add = [&](const char* role, const char* content) -> v1::ChatMessage& {
    v1::ChatMessage& message = *expected.add_messages();
    message.set_role(role);
    message.set_content(content);
    return message;
  };
  add("user", "Hi");
  v1::ChatMessage& answer = add("assistant", "");
  answer.set_reasoning("why");
  v1::ToolCall* call = answer.add_tool_calls();
  call->set_id("c1");
  call->set_name("add");
  call->set_arguments_json(R"({"a": 1})");
  call = answer.add_tool_calls();
  call->set_id("c2");
  call->set_name("now");
  add("tool", "3").set_tool_call_id("c1");
  add("tool", "noon").set_tool_call_id("c2");
  add("assistant", "stored");
  add("user", "From /root/worker:\ndone");
  add("user", "And?");
  expected.set_tools_json(R"([{"type":"function","function":{"name":"add","parameters":{}}}])");
  expected.set_template_args_json(R"({"reasoning_effort":"low"})");
  expected.set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
  expected.set_tool_name("add");
  EXPECT_EQ(read->message.prompt().conversation().DebugString(), expected.DebugString());
  EXPECT_EQ(read->shown["tools"], body["tools"]);

  EXPECT_EQ(
      ToHttpStatus(Response({{"input", {{{"type", "item_reference"}, {"id", "msg_2"}}}}}).status()),
      404);
  EXPECT_THAT(Response({{"input", {{{"type", "computer_call"}}}}}).status().message(),
              HasSubstr("input[0].type: expected message, agent_message, reasoning, function_call, "
                        "function_call_output or item_reference, got computer_call"));
  const Json sealed = Json::parse(R"([{"type": "input_text", "text": "x"},
      {"type": "encrypted_content", "encrypted_content": "gAAA"}])");
  const absl::Status status =
      Response({{"input", {{{"type", "agent_message"}, {"author", "a"}, {"content", sealed}}}}})
          .status();
  EXPECT_EQ(engine::GetErrorFacts(status).field, "input[0].content[1]") << status;
  EXPECT_THAT(status.message(), HasSubstr("encrypted_content"));
}

TEST(ResponseRequests, AnItemNamesItsResponse) {
  const auto place = FindItemPlace(ItemId("msg_", {.session_id = kSession, .index = 3}));
  ASSERT_TRUE(place);
  EXPECT_EQ(place->session_id, kSession);
  EXPECT_EQ(place->index, 3);
  for (const char* id : {"", "_", "msg_", "msg_x_1", "msg_1"})
    EXPECT_FALSE(FindItemPlace(id)) << id;
  EXPECT_FALSE(FindItemPlace(std::string("msg_") + kSession + "_"));
}

}  // namespace
}  // namespace ovq::server
