// Constraints on answers over gRPC.
#include <nlohmann/json.hpp>

#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

v1::GenerateRequest Constrained(const std::function<void(v1::Constraint&)>& set,
                                uint32_t max_tokens = 500) {
  v1::GenerateRequest request = TextRequest("Say", max_tokens);
  set(*request.mutable_sampling()->mutable_constraint());
  return request;
}

v1::GenerateRequest OneOf(const std::vector<std::string>& texts, uint32_t max_tokens = 500) {
  return Constrained(
      [&](v1::Constraint& to) {
        to.mutable_choice()->mutable_texts()->Add(texts.begin(), texts.end());
      },
      max_tokens);
}

TEST(Constraints, EachKindIsKept) {
  TestServer server;
  const auto text = [&](const std::function<void(v1::Constraint&)>& set) {
    const Collected answer = Generate(server.inference(), Constrained(set));
    EXPECT_THAT(answer.status, Succeeds());
    return answer.text;
  };
  EXPECT_EQ(text([](v1::Constraint& to) { to.set_regex("ab{3}c"); }), "abbbc");
  EXPECT_EQ(text([](v1::Constraint& to) { to.set_grammar("root ::= \"x\" y\ny ::= \"y\""); }),
            "xy");
  EXPECT_EQ(
      text([](v1::Constraint& to) { to.set_json_schema(R"({"const": [1, null]})"); }).substr(0, 1),
      "[");
  EXPECT_EQ(text([](v1::Constraint& to) { to.mutable_choice()->add_texts("so"); }), "so");
  EXPECT_TRUE(nlohmann::json::accept(text([](v1::Constraint& to) {
    to.set_json_schema(R"({"type": "object", "properties": {"a": {"type": "boolean"}},
                           "required": ["a"], "additionalProperties": false})");
  })));
}

TEST(Constraints, TheModelSaysItsLimits) {
  TestServer server;
  v1::ModelInfo info;
  ASSERT_THAT(Call(server.inference(), &v1::InferenceService::Stub::GetModelInfo,
                   v1::GetModelInfoRequest(), info),
              Succeeds());
  EXPECT_TRUE(info.has_constraints());
  EXPECT_EQ(info.limits().max_constraint_bytes(), 262144u);
  EXPECT_EQ(info.limits().max_choices(), 4096u);
}

TEST(Constraints, WhatCannotBeKeptNamesItsField) {
  TestServer server;
  const auto refused = [&](const std::function<void(v1::Constraint&)>& set, const char* field,
                           const char* why) {
    const Collected answer = Generate(server.inference(), Constrained(set));
    EXPECT_THAT(answer.status, Fails(kInvalid, why));
    EXPECT_EQ(GetErrorInfo(answer.status).field(), field);
  };
  refused([](v1::Constraint&) {}, "sampling.constraint", "got none of them");
  refused([](v1::Constraint& to) { to.set_json_object(false); }, "sampling.constraint",
          "expected json_schema, json_object: true, regex");
  refused([](v1::Constraint& to) { to.mutable_choice(); }, "sampling.constraint.choice",
          "expected 1 to 4096 texts, got 0");
  refused([](v1::Constraint& to) { to.set_regex(std::string(262145, 'a')); },
          "sampling.constraint.regex", "expected at most 262144 bytes, got 262145");
  refused([](v1::Constraint& to) { to.set_json_schema("{"); }, "sampling.constraint.json_schema",
          "sampling.constraint.json_schema: ");
  refused(
      [](v1::Constraint& to) {
        to.set_json_schema(R"({"properties": {"a": {"not": {"type": "null"}}}})");
      },
      "sampling.constraint.json_schema", "#/properties/a");
  refused([](v1::Constraint& to) { to.set_grammar("root ::= root"); },
          "sampling.constraint.grammar", "root");
  // The log has none of the caller's text.
  EXPECT_THAT(server.LogText(), testing::Not(HasSubstr("properties/a")));
}

TEST(Constraints, AModelWithoutTextHasNone) {
  TestServer server({.model = {.with_text = false}});
  v1::GenerateRequest request = TokenRequest({1, 2}, 5);
  request.mutable_sampling()->mutable_constraint()->set_regex("a");
  EXPECT_THAT(Generate(server.inference(), request).status,
              Fails(grpc::StatusCode::FAILED_PRECONDITION, "tokenizer"));
}

TEST(Constraints, ASessionGoesOnWithAnAnswerThatWasCut) {
  TestServer server;
  const std::string session = server.NewSession();
  v1::GenerateRequest request = OneOf({"a long text", "another text"}, 4);
  request.set_session_id(session);
  const Collected first = Generate(server.inference(), request);
  ASSERT_THAT(first.status, Succeeds());
  EXPECT_EQ(first.finished.at(0).reason(), v1::FINISH_REASON_LENGTH);
  v1::GenerateRequest more;
  more.set_session_id(session);
  more.mutable_stop()->set_max_tokens(100);
  const Collected second = Generate(server.inference(), more);
  ASSERT_THAT(second.status, Succeeds());
  const std::string text = first.text + second.text;
  EXPECT_TRUE(text == "a long text" || text == "another text") << text;
  EXPECT_EQ(second.finished.at(0).reason(), v1::FINISH_REASON_STOP);
}

TEST(Constraints, ATurnOfAChatHasItsOwn) {
  TestServer server;
  grpc::ClientContext context;
  const auto stream = server.inference().Chat(&context);
  ASSERT_TRUE(stream->Write(OpenMessage()));
  v1::ChatResponse opened;
  ASSERT_TRUE(stream->Read(&opened));
  v1::ChatRequest message = TurnMessage("Say", 100);
  message.mutable_turn()->mutable_sampling()->mutable_constraint()->set_regex("yes|no");
  ASSERT_TRUE(stream->Write(message));
  Collected turn;
  ASSERT_TRUE(ReadTurn(*stream, turn));
  EXPECT_TRUE(turn.text == "yes" || turn.text == "no") << turn.text;
  // A part that is only read has no answer, hence no form.
  message = TurnMessage("And ", 100, /*more=*/true);
  message.mutable_turn()->clear_sampling();  // the last turn's
  ASSERT_TRUE(stream->Write(message));
  Collected part;
  ASSERT_TRUE(ReadTurn(*stream, part));
  message = TurnMessage("again", 100);
  message.mutable_turn()->clear_sampling();
  ASSERT_TRUE(stream->Write(message));
  Collected last;
  ASSERT_TRUE(ReadTurn(*stream, last));
  EXPECT_TRUE(last.text == "yes" || last.text == "no") << last.text;
  stream->WritesDone();
  EXPECT_THAT(stream->Finish(), Succeeds());
}

// A server without room for compiled constraints refuses them, and serves on.
TEST(Constraints, ThereMayBeNoMemory) {
  TestServerOptions options;
  options.engine.constraint_memory_bytes = 1000;
  TestServer server(std::move(options));
  const Collected answer = Generate(server.inference(), OneOf({std::string(400, 'a'), "b"}));
  EXPECT_THAT(answer.status, Fails(grpc::StatusCode::RESOURCE_EXHAUSTED, "constraint: "));
  EXPECT_THAT(Generate(server.inference(), TextRequest("Say", 3)).status, Succeeds());
}

}  // namespace
}  // namespace ovq::server::test
