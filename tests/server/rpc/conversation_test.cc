// Prompts of messages: the text of the chat template, and within a session the new part of it.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr auto kPrecondition = grpc::StatusCode::FAILED_PRECONDITION;

constexpr char kTemplate[] =
    "{% if tools %}{{ tools|tojson }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'nobody' %}{{ raise_exception('not ' ~ m.content) }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";

using Messages = std::vector<std::pair<std::string, std::string>>;

v1::Conversation Talk(const Messages& messages, uint32_t known = 0) {
  v1::Conversation conversation;
  for (const auto& [role, content] : messages) {
    v1::ChatMessage& message = *conversation.add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  conversation.set_known(known);
  return conversation;
}

v1::GenerateRequest AnswerTo(const v1::Conversation& conversation, uint32_t max_tokens,
                             const std::string& session = "") {
  v1::GenerateRequest request;
  *request.mutable_prompt()->mutable_conversation() = conversation;
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(0);
  if (!session.empty()) request.set_session_id(session);
  return request;
}

class ConversationTest : public testing::Test {
 protected:
  TestServer& Serve(const std::string& text = kTemplate) {
    TestServerOptions options;
    options.model.chat_template = text;
    // "[user]Hi<|end|>\n[assistant]" are 21 tokens. The answer is "yo" and, unless it is stopped
    // before, the end token.
    options.setup = [](engine::test::FakeModel& model) {
      model.Script(21, "yo");
      model.Script(23, engine::test::kEos);
    };
    return server_.emplace(std::move(options));
  }
  Collected Ask(const v1::GenerateRequest& request) {
    return Generate(server_->inference(), request);
  }
  // A second turn prefills the new text only. The session then holds the tokens of the whole text:
  // the answer, which depends on all of them, shows it.
  void ExpectGoesOn(uint32_t max_tokens, v1::FinishReason reason, uint64_t new_tokens) {
    const std::string session = server_->NewSession();
    const Collected first = Ask(AnswerTo(Talk({{"user", "Hi"}}), max_tokens, session));
    ASSERT_THAT(first.status, Succeeds());
    EXPECT_EQ(first.text, "yo");
    EXPECT_EQ(first.finished.at(0).reason(), reason);
    const Messages all = {{"user", "Hi"}, {"assistant", "yo"}, {"user", "Bye"}};
    const Collected second = Ask(AnswerTo(Talk(all, 2), 20, session));
    ASSERT_THAT(second.status, Succeeds());
    EXPECT_EQ(second.started.prompt_tokens(), new_tokens);
    const Collected whole = Ask(AnswerTo(Talk(all), 20));
    ASSERT_THAT(whole.status, Succeeds());
    EXPECT_EQ(whole.started.prompt_tokens(),
              second.started.prompt_tokens() + second.started.cached_tokens());
    EXPECT_EQ(second.tokens, whole.tokens);
  }

  std::optional<TestServer> server_;
};

// "\n[user]Bye<|end|>\n[assistant]" after the end that was drawn, and with it where none was.
TEST_F(ConversationTest, AfterAnAnswerThatEnded) {
  Serve();
  ExpectGoesOn(10, v1::FINISH_REASON_STOP, 23);
}
TEST_F(ConversationTest, AfterAnAnswerThatWasCut) {
  Serve();
  ExpectGoesOn(2, v1::FINISH_REASON_LENGTH, 24);
}

TEST_F(ConversationTest, AfterMessagesWithoutAnAnswer) {
  Serve();
  v1::CreateSessionRequest create;
  v1::Conversation& system = *create.mutable_prompt()->mutable_conversation();
  system = Talk({{"system", "Be."}});
  system.set_add_generation_prompt(false);
  const std::string session = server_->NewSession(create);
  const Messages all = {{"system", "Be."}, {"user", "Hi"}};
  const Collected turn = Ask(AnswerTo(Talk(all, 1), 20, session));
  ASSERT_THAT(turn.status, Succeeds());
  EXPECT_EQ(turn.started.prompt_tokens(), 21u);
  EXPECT_EQ(turn.tokens, Ask(AnswerTo(Talk(all), 20)).tokens);
}

TEST_F(ConversationTest, TurnsOfAChat) {
  TestServer& server = Serve();
  grpc::ClientContext context;
  const auto stream = server.inference().Chat(&context);
  v1::ChatRequest message = OpenMessage();
  ASSERT_TRUE(stream->Write(message));
  v1::ChatResponse opened;
  ASSERT_TRUE(stream->Read(&opened));
  const auto turn = [&](const v1::Conversation& conversation, Collected& collected) {
    v1::ChatRequest request = TurnMessage("", 10);
    *request.mutable_turn()->mutable_prompt()->mutable_conversation() = conversation;
    EXPECT_TRUE(stream->Write(request));
    return ReadTurn(*stream, collected);
  };
  const Messages all = {{"user", "Hi"}, {"assistant", "yo"}, {"user", "Bye"}};
  Collected first, second, third;
  ASSERT_TRUE(turn(Talk({{"user", "Hi"}}), first));
  EXPECT_EQ(first.text, "yo");
  ASSERT_TRUE(turn(Talk(all, 2), second));
  EXPECT_EQ(second.started.prompt_tokens(), 23u);
  EXPECT_FALSE(turn(Talk(all), third));
  EXPECT_THAT(stream->Finish(), Fails(kPrecondition, "turn.prompt.conversation.known: "));
}

TEST_F(ConversationTest, KnownFitsTheSession) {
  Serve();
  const Messages two = {{"user", "Hi"}, {"user", "Ho"}};
  EXPECT_THAT(Ask(AnswerTo(Talk(two, 1), 1)).status,
              Fails(kPrecondition, "prompt.conversation.known: expected 0"));
  EXPECT_THAT(Ask(AnswerTo(Talk(two, 1), 1, "feed")).status,
              Fails(grpc::StatusCode::NOT_FOUND, "feed"));
  const std::string session = server_->NewSession();
  EXPECT_THAT(Ask(AnswerTo(Talk(two, 1), 1, session)).status, Fails(kPrecondition, "expected 0"));
  ASSERT_THAT(Ask(AnswerTo(Talk(two), 1, session)).status, Succeeds());
  EXPECT_THAT(Ask(AnswerTo(Talk(two), 1, session)).status,
              Fails(kPrecondition, "expected how many of the messages the session"));
  EXPECT_THAT(Ask(AnswerTo(Talk(two, 3), 1, session)).status,
              Fails(kInvalid, "prompt.conversation.known: expected at most the 2 messages, got 3"));
}

// Templates open an answer otherwise than they write it once it is past: they drop its reasoning,
// or mark its text. Only what they write behind the answer is new.
TEST_F(ConversationTest, ATemplateThatWritesPastAnswersOtherwise) {
  for (const char* past : {"[assistant]", "[assistant]<say>"}) {
    Serve(std::string("{% for m in messages %}{% if m.role == 'assistant' %}") + past +
          "{{ m.content }}<|end|>\n{% else %}[{{ m.role }}]{{ m.content }}<|end|>\n{% endif %}"
          "{% endfor %}{% if add_generation_prompt %}[assistant]{{ opened }}{% endif %}");
    const std::string session = server_->NewSession();
    v1::Conversation first = Talk({{"user", "Hi"}});
    first.set_template_args_json(R"({"opened": "<think>"})");
    ASSERT_THAT(Ask(AnswerTo(first, 3, session)).status, Succeeds());
    v1::Conversation second = Talk({{"user", "Hi"}, {"assistant", "zzz"}, {"user", "Bye"}}, 2);
    const Collected turn = Ask(AnswerTo(second, 1, session));
    ASSERT_THAT(turn.status, Succeeds());
    EXPECT_EQ(turn.started.prompt_tokens(), 24u) << past;  // <|end|>\n[user]Bye<|end|>\n[assistant]
  }
}

TEST_F(ConversationTest, ATemplateThatWritesNothingOfThePastAnswer) {
  Serve(
      "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else '.' }}<|end|>\n"
      "{% endfor %}[assistant]");
  const std::string session = server_->NewSession();
  ASSERT_THAT(Ask(AnswerTo(Talk({{"user", "Hi"}}), 10, session)).status, Succeeds());
  const Collected second =
      Ask(AnswerTo(Talk({{"user", "Hi"}, {"assistant", "yo"}, {"user", "Bye"}}, 2), 1, session));
  EXPECT_THAT(second.status, Fails(kPrecondition,
                                   "prompt.conversation.known: the chat template writes nothing of "
                                   "messages[1], the answer that the session holds"));
  EXPECT_EQ(GetErrorInfo(second.status).field(), "prompt.conversation.known");
}

TEST_F(ConversationTest, ATemplateThatRewritesTheKnownMessages) {
  Serve(
      "{% for m in messages %}[{{ m.role }}]{{ m.content if loop.last else '.' }}<|end|>\n"
      "{% endfor %}");
  const Messages two = {{"user", "Hi"}, {"user", "Bye"}};
  const Collected whole = Ask(AnswerTo(Talk(two), 8));
  for (const bool keeps : {true, false}) {
    v1::CreateSessionRequest create;
    create.set_keep_tokens(keeps);
    const std::string session = server_->NewSession(create);
    ASSERT_THAT(Ask(AnswerTo(Talk({{"user", "Hi"}}), 0, session)).status, Succeeds());
    const Collected turn = Ask(AnswerTo(Talk(two, 1), 8, session));
    if (!keeps) {
      EXPECT_THAT(turn.status,
                  Fails(kPrecondition,
                        "prompt.conversation.known: the chat template no longer writes the known "
                        "messages as the session has read them: their texts differ at byte 6; a "
                        "session with keep_tokens would go back to there"));
      continue;
    }
    ASSERT_THAT(turn.status, Succeeds());
    EXPECT_EQ(turn.started.cached_tokens(), 6u);  // [user]
    EXPECT_EQ(turn.started.prompt_tokens(), whole.started.prompt_tokens() - 6);
    EXPECT_EQ(turn.tokens, whole.tokens);
  }
}

constexpr char kToolTemplate[] =
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</call>{{ c.id }}{% endfor %}"
    "{% if m.tool_call_id %} for {{ m.tool_call_id }} of {{ m.name }}{% endif %}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{{ mood }}{% endif %}";

TEST_F(ConversationTest, MessagesSayEverything) {
  TestServer& server = Serve(kToolTemplate);
  v1::ApplyTemplateRequest request;
  v1::Conversation& conversation = *request.mutable_conversation();
  conversation = Talk({{"user", "Hi"}, {"assistant", "a"}, {"tool", "3"}});
  v1::ChatMessage& answer = *conversation.mutable_messages(1);
  answer.set_reasoning("why");
  v1::ToolCall& call = *answer.add_tool_calls();
  call.set_id("x1");
  call.set_name("add");
  call.set_arguments_json(R"({"b": 2, "a": 1})");
  conversation.mutable_messages(2)->set_tool_call_id("x1");
  conversation.mutable_messages(2)->set_name("add");
  conversation.set_template_args_json(R"({"mood": "!"})");
  v1::ApplyTemplateResponse response;
  grpc::ClientContext context, reserved;
  ASSERT_THAT(server.inference().ApplyTemplate(&context, request, &response), Succeeds());
  EXPECT_EQ(response.text(),
            "[user]Hi<|end|>\n[assistant](why)a<call>{\"name\": \"add\", \"arguments\": {\"b\": 2, "
            "\"a\": 1}}</call>x1<|end|>\n[tool]3 for x1 of add<|end|>\n[assistant]!");
  conversation.set_template_args_json(R"({"messages": []})");
  EXPECT_THAT(server.inference().ApplyTemplate(&reserved, request, &response),
              Fails(kInvalid,
                    "conversation.template_args_json: expected variables without a field of their "
                    "own, got messages"));
}

TEST_F(ConversationTest, AMessageThatLeavesNoTraceIsRefused) {
  TestServer& server = Serve(
      "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}[{{ m.role }}]"
      "{{ m.content }}<|end|>\n{% endif %}{% endfor %}");
  v1::ApplyTemplateRequest request;
  *request.mutable_conversation() = Talk({{"developer", "Be."}, {"user", "Hi"}});
  v1::ApplyTemplateResponse response;
  grpc::ClientContext context, tool, unknown;
  ASSERT_THAT(server.inference().ApplyTemplate(&context, request, &response), Succeeds());
  EXPECT_EQ(response.text(), "[system]Be.<|end|>\n[user]Hi<|end|>\n");
  *request.mutable_conversation() = Talk({{"user", "Hi"}, {"tool", "3"}});
  EXPECT_THAT(server.inference().ApplyTemplate(&tool, request, &response),
              Fails(kInvalid,
                    "conversation.messages[1].role: expected a role that the model's chat "
                    "template writes, got 'tool'"));
  *request.mutable_conversation() = Talk({{"critic", "No."}});
  EXPECT_THAT(server.inference().ApplyTemplate(&unknown, request, &response),
              Fails(kInvalid, "conversation.messages[0].role"));
  Messages many;
  for (int i = 0; i < 20; ++i) many.push_back({"role" + std::to_string(i), "a"});
  TestServer& any = Serve();
  *request.mutable_conversation() = Talk(many);
  grpc::ClientContext roles;
  EXPECT_THAT(
      any.inference().ApplyTemplate(&roles, request, &response),
      Fails(kInvalid, "conversation.messages[14].role: expected at most 16 different roles"));
}

TEST_F(ConversationTest, ADevelopersMessageIsTheSystemsWhereTheTemplateRefusesIt) {
  TestServer& server = Serve(
      "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
      "{{ raise_exception('Unexpected message role.') }}{% endif %}[{{ m.role }}]{{ m.content }}"
      "{% endfor %}");
  v1::ApplyTemplateRequest request;
  *request.mutable_conversation() = Talk({{"developer", "Be."}, {"user", "Hi"}});
  v1::ApplyTemplateResponse response;
  grpc::ClientContext context;
  ASSERT_THAT(server.inference().ApplyTemplate(&context, request, &response), Succeeds());
  EXPECT_EQ(response.text(), "[system]Be.[user]Hi");
  // Another role that it refuses is told in the template's own words.
  *request.mutable_conversation() = Talk({{"critic", "Be."}, {"user", "Hi"}});
  grpc::ClientContext refused;
  EXPECT_THAT(server.inference().ApplyTemplate(&refused, request, &response),
              Fails(kInvalid, "Unexpected message role."));
}

// Templates may refuse a system message behind the first message, or pass over it.
TEST_F(ConversationTest, ALaterSystemMessageIsTheUsersWhereTheTemplateTakesOnlyThat) {
  const std::string turn = "[{{ m.role }}]{{ m.content }}<|end|>\n";
  const std::string later = "{% if m.role == 'system' and not loop.first %}";
  const std::pair<std::string, const char*> templates[] = {
      {turn, "system"},
      {later + "{{ raise_exception('System message must be at the beginning.') }}{% endif %}" +
           turn,
       "user"},
      {later + "{% else %}" + turn + "{% endif %}", "user"}};
  for (const auto& [each, role] : templates) {
    TestServer& server = Serve("{% for m in messages %}" + each + "{% endfor %}");
    v1::ApplyTemplateRequest request;
    *request.mutable_conversation() =
        Talk({{"system", "Be."}, {"user", "Hi"}, {"system", "Do."}, {"assistant", "a"}});
    v1::ApplyTemplateResponse response;
    grpc::ClientContext context;
    ASSERT_THAT(server.inference().ApplyTemplate(&context, request, &response), Succeeds());
    EXPECT_EQ(response.text(), absl::StrCat("[system]Be.<|end|>\n[user]Hi<|end|>\n[", role,
                                            "]Do.<|end|>\n[assistant]a<|end|>\n"));
  }
}

// Gemma's and Mistral's templates demand turns of user and assistant, and Gemma's first ones no
// system message at all.
TEST_F(ConversationTest, ASystemMessageWithoutAPlaceJoinsTheUsersBesideIt) {
  const std::string alternate =
      "{% set ns = namespace(odd=false) %}{% for m in messages %}"
      "{% if m.role == 'system' and loop.first %}[{{ m.role }}]{{ m.content }}{% else %}"
      "{% if (m.role == 'assistant') != ns.odd or m.role == 'system' %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.odd = not ns.odd %}"
      "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}";
  // It looks at places alone: a later system message shows only when the answer comes.
  const std::string by_place =
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
      "{% endfor %}";
  const Messages talk = {{"system", "Be."},  {"system", "Do."}, {"user", "Hi"}, {"system", "Go."},
                         {"assistant", "a"}, {"system", "On."}, {"user", "Yes"}};
  const std::string rest = "Hi\n\nGo.[assistant]a[user]On.\n\nYes";
  const std::pair<std::string, std::string> cases[] = {
      {alternate, "[system]Be.[user]Do.\n\n" + rest}, {by_place, "[user]Be.\n\nDo.\n\n" + rest}};
  for (const auto& [text, expected] : cases) {
    TestServer& server = Serve(text);
    v1::ApplyTemplateRequest request;
    *request.mutable_conversation() = Talk(talk);
    v1::ApplyTemplateResponse response;
    grpc::ClientContext context, alone, refused;
    ASSERT_THAT(server.inference().ApplyTemplate(&context, request, &response), Succeeds());
    EXPECT_EQ(response.text(), expected);
    // With nothing to join it is a user's message.
    *request.mutable_conversation() = Talk({{"user", "Hi"}, {"assistant", "a"}, {"system", "Do."}});
    ASSERT_THAT(server.inference().ApplyTemplate(&alone, request, &response), Succeeds());
    EXPECT_EQ(response.text(), "[user]Hi[assistant]a[user]Do.");
    // Turns of others are refused in the template's own words.
    *request.mutable_conversation() = Talk({{"user", "Hi"}, {"user", "Do."}});
    EXPECT_THAT(server.inference().ApplyTemplate(&refused, request, &response),
                Fails(kInvalid, "roles must alternate"));
  }
}

TEST_F(ConversationTest, FieldsHaveLimits) {
  Serve();
  EXPECT_THAT(Ask(AnswerTo(Talk({}), 1)).status,
              Fails(kInvalid, "prompt.conversation.messages: expected 1 to 4096, got 0"));
  EXPECT_THAT(Ask(AnswerTo(Talk(Messages(4097, {"user", ""})), 1)).status,
              Fails(kInvalid, "expected 1 to 4096, got 4097"));
  EXPECT_THAT(Ask(AnswerTo(Talk({{"user", ""}, {"", "Hi"}}), 1)).status,
              Fails(kInvalid, "prompt.conversation.messages[1].role: expected 1 to 64 bytes"));
  EXPECT_THAT(Ask(AnswerTo(Talk({{std::string(65, 'x'), "Hi"}}), 1)).status,
              Fails(kInvalid, "messages[0].role: expected 1 to 64 bytes, got 65"));
  v1::Conversation conversation = Talk({{"user", "Hi"}});
  conversation.set_tools_json(std::string((1 << 20) + 1, ' '));
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "prompt.conversation.tools_json: expected at most 1048576 bytes"));
  conversation.set_tools_json("");
  v1::ChatMessage& message = *conversation.mutable_messages(0);
  message.add_tool_calls()->set_name("a");
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "messages[0].tool_calls: expected them in messages of role"));
  message.set_role("assistant");
  message.mutable_tool_calls(0)->set_name("");
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "messages[0].tool_calls[0].name: expected the name of a tool"));
  message.mutable_tool_calls(0)->set_name(std::string(257, 'a'));
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "messages[0].tool_calls[0].name: expected at most 256 bytes"));
  message.clear_tool_calls();
  for (int i = 0; i < 129; ++i) message.add_tool_calls()->set_name("a");
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "messages[0].tool_calls: expected at most 128"));
  message.clear_tool_calls();
  conversation.set_template_args_json(std::string((64 << 10) + 1, ' '));
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "template_args_json: expected at most 65536 bytes"));
  conversation.set_template_args_json("");
  conversation.set_tools_json("{}");
  EXPECT_THAT(Ask(AnswerTo(conversation, 1)).status,
              Fails(kInvalid, "prompt.conversation.tools_json: not a JSON list"));
}

TEST_F(ConversationTest, TheTemplatesOwnRefusalIsForTheCallerAlone) {
  Serve();
  EXPECT_THAT(Ask(AnswerTo(Talk({{"nobody", "secret"}}), 1)).status,
              Fails(kInvalid, "line 1: the template refuses: not secret"));
  EXPECT_THAT(server_->LogText(), Not(HasSubstr("secret")));
}

TEST_F(ConversationTest, ModelsWithoutATemplate) {
  server_.emplace();
  EXPECT_THAT(Ask(AnswerTo(Talk({{"user", "Hi"}}), 1)).status,
              Fails(kPrecondition, "prompt.conversation: this model has no chat template"));
}

TEST_F(ConversationTest, ApplyTemplateShowsTheText) {
  TestServer& server = Serve();
  v1::ApplyTemplateRequest request;
  *request.mutable_conversation() = Talk({{"user", "Hi"}});
  request.mutable_conversation()->set_tools_json(R"([{"b": 1, "a": 2}])");
  v1::ApplyTemplateResponse response;
  grpc::ClientContext context, without, known;
  ASSERT_THAT(server.inference().ApplyTemplate(&context, request, &response), Succeeds());
  EXPECT_EQ(response.text(), "[{\"b\": 1, \"a\": 2}][user]Hi<|end|>\n[assistant]");
  request.mutable_conversation()->clear_tools_json();
  request.mutable_conversation()->set_add_generation_prompt(false);
  ASSERT_THAT(server.inference().ApplyTemplate(&without, request, &response), Succeeds());
  EXPECT_EQ(response.text(), "[user]Hi<|end|>\n");
  request.mutable_conversation()->set_known(1);
  EXPECT_THAT(server.inference().ApplyTemplate(&known, request, &response),
              Fails(kPrecondition, "conversation.known: expected 0"));
}

constexpr char kCallTemplate[] =
    "{% if tools %}{{ tools|tojson }}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", "
    "\"arguments\": {{ c.function.arguments|tojson }}}</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
constexpr char kTools[] = R"([{"type": "function", "function": {"name": "now"}}])";

v1::GenerateRequest AskWithTools() {
  v1::GenerateRequest request = AnswerTo(Talk({{"user", "Hi"}}), 100);
  request.mutable_prompt()->mutable_conversation()->set_tools_json(kTools);
  request.mutable_output()->set_parts(true);
  return request;
}

// The parts of an answer, joined: their names and texts.
std::string Parts(TestServer& server, const v1::GenerateRequest& request, std::string& text) {
  grpc::ClientContext context;
  const auto reader = server.inference().Generate(&context, request);
  std::string shown, last;
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    text += response.chunk().text();
    for (const v1::AnswerPart& part : response.chunk().parts()) {
      const auto* field =
          part.GetReflection()->GetOneofFieldDescriptor(part, part.GetDescriptor()->oneof_decl(0));
      const std::string name = field->name();
      if (name != last) shown += (shown.empty() ? "" : "|") + name + ":";
      last = name;
      if (name != "call_end") shown += part.GetReflection()->GetString(part, field);
    }
  }
  EXPECT_TRUE(reader->Finish().ok());
  return shown;
}

TEST(AnswerParts, AMarkerThatIsASpecialTokenIsSeen) {
  const std::string prompt = std::string(R"([{"type": "function", "function": {"name": "now"}}])") +
                             "[user]Hi" + "E" + "\n[assistant]";  // E: one token of the end
  const std::string call = R"({"name": "now", "arguments": {"a": 1}}</tool_call>)";
  TestServer server(
      {.model = {.chat_template = kCallTemplate}, .setup = [&](engine::test::FakeModel& model) {
         const int64_t begin = std::ssize(prompt);
         model.Script(begin, "Ok.");
         model.Script(begin + 3, engine::test::kMarker);
         model.Script(begin + 4, call);
         model.Script(begin + 4 + std::ssize(call), engine::test::kEos);
       }});
  std::string text;
  EXPECT_EQ(Parts(server, AskWithTools(), text),
            R"(content:Ok.|call:now|arguments:{"a": 1}|call_end:)");
  EXPECT_EQ(text, "");
  v1::GenerateRequest plain = AskWithTools();
  plain.mutable_output()->set_parts(false);
  EXPECT_EQ(Parts(server, plain, text), "");
  EXPECT_EQ(text, "Ok." + call) << "special tokens have no text";
}

TEST(AnswerParts, WhatCannotBeParsedIsRefused) {
  TestServer server({.model = {.chat_template = kCallTemplate}});
  const auto refused = [&](const std::function<void(v1::GenerateRequest&)>& change,
                           const char* why) {
    v1::GenerateRequest request = AskWithTools();
    change(request);
    const Collected answer = Generate(server.inference(), request);
    EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(answer.status.error_message(), HasSubstr(why));
  };
  const auto conversation = [](v1::GenerateRequest& request) {
    return request.mutable_prompt()->mutable_conversation();
  };
  refused([&](auto& r) { conversation(r)->set_tools_json("{}"); },
          "prompt.conversation.tools_json: expected a JSON list of tools");
  refused([&](auto& r) { conversation(r)->set_tools_json("[3]"); }, "expected tools with a name");
  refused([&](auto& r) { conversation(r)->set_tools_json(std::string((1 << 20) + 1, ' ')); },
          "prompt.conversation.tools_json: expected at most 1048576 bytes");
  refused(
      [&](auto& r) {
        conversation(r)->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
        conversation(r)->clear_tools_json();
      },
      "expected tools, as a call is required");
  refused(
      [&](auto& r) {
        conversation(r)->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
        conversation(r)->set_tool_name("then");
      },
      "prompt.conversation.tool_name: expected the name of one of the tools, got 'then'");
  refused(
      [&](auto& r) {
        conversation(r)->set_tool_choice(v1::TOOL_CHOICE_REQUIRED);
        r.mutable_output()->set_parts(false);
      },
      "output.parts: expected true");
  refused([&](auto& r) { r.mutable_prompt()->set_text("Hi"); },
          "output.parts: expected it only with prompt.conversation");

  TestServer without({.model = {.chat_template = kTemplate}});
  const Collected answer = Generate(without.inference(), AskWithTools());
  EXPECT_THAT(answer.status.error_message(),
              HasSubstr("tools_json: expected none, as the model's chat template writes no tool"));
}

// Arguments that are nested without end are text to the template, and harm nobody.
TEST(AnswerParts, DeepArgumentsAreText) {
  TestServer server({.model = {.chat_template = kCallTemplate}});
  v1::ApplyTemplateRequest request;
  v1::ChatMessage& message = *request.mutable_conversation()->add_messages();
  message.set_role("assistant");
  message.add_tool_calls()->set_name("now");
  message.mutable_tool_calls(0)->set_arguments_json("{\"a\": " + std::string(1'000'000, '['));
  grpc::ClientContext context;
  v1::ApplyTemplateResponse response;
  (void)server.inference().ApplyTemplate(&context, request, &response);
  message.mutable_tool_calls(0)->set_arguments_json("{\"a\": " + std::string(1'000'000, '[') +
                                                    std::string(1'000'000, ']') + "}");
  grpc::ClientContext again;
  (void)server.inference().ApplyTemplate(&again, request, &response);
  EXPECT_THAT(response.text(), HasSubstr("\"arguments\": \"{"));
}

}  // namespace
}  // namespace ovq::server::test
