// The prefix cache as callers see it: which part of a prompt is cached, and how much was found.
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::Le;

constexpr uint32_t kBlock = 256;  // bytes of a made-up text, hence tokens

using Messages = std::vector<std::pair<std::string, std::string>>;

v1::Conversation ToConversation(const Messages& messages) {
  v1::Conversation conversation;
  for (const auto& [role, content] : messages) {
    v1::ChatMessage& message = *conversation.add_messages();
    message.set_role(role);
    message.set_content(content);
  }
  return conversation;
}
v1::GenerateRequest MakeRequest(const v1::Conversation& conversation) {
  v1::GenerateRequest request = TextRequest("", 8);
  *request.mutable_prompt()->mutable_conversation() = conversation;
  return request;
}

// A token is a byte here.
std::string Text(size_t n, char c) { return std::string(n, c); }

class PrefixCallsTest : public testing::Test {
 protected:
  TestServer& Serve(const std::string& chat_template = {}, size_t prefix_memory = 1 << 28) {
    TestServerOptions options;
    options.model.chat_template = chat_template;
    options.engine.prefix_memory_bytes = prefix_memory;
    return server_.emplace(std::move(options));
  }
  // Cached tokens of the prompt; Started and Finished must agree.
  uint64_t Cached(const v1::GenerateRequest& request, const std::string& tenant = {}) {
    grpc::ClientContext context;
    if (!tenant.empty()) context.AddMetadata("ovq-tenant", tenant);
    const Collected answer = Generate(server_->inference(), request, context);
    EXPECT_THAT(answer.status, Succeeds());
    if (answer.finished.size() != 1) return UINT64_MAX;
    EXPECT_EQ(answer.finished[0].usage().cached_tokens(), answer.started.cached_tokens());
    tokens_ = answer.tokens;
    return answer.started.cached_tokens();
  }

  std::optional<TestServer> server_;
  std::vector<uint32_t> tokens_;  // tokens of the last answer
};

TEST_F(PrefixCallsTest, AMarkedPromptIsFoundByItsTenant) {
  Serve();
  v1::GenerateRequest request = TextRequest(Text(2 * kBlock, 'a') + "b", 8);
  EXPECT_EQ(Cached(request), 0u);
  request.mutable_prompt()->set_cacheable(true);
  EXPECT_EQ(Cached(request), 0u) << "unmarked, it left nothing";
  const std::vector<uint32_t> miss = tokens_;
  EXPECT_EQ(Cached(request), 2 * kBlock);
  EXPECT_EQ(tokens_, miss);
  EXPECT_EQ(Cached(request, "bob"), 0u);
  EXPECT_EQ(Cached(request, "bob"), 2 * kBlock);
  request.mutable_prompt()->set_cacheable(false);
  EXPECT_EQ(Cached(request), 0u);
  v1::GenerateRequest ids = TokenRequest(std::vector<uint32_t>(kBlock + 1, 'c'), 8);
  ids.mutable_prompt()->set_cacheable(true);
  EXPECT_EQ(Cached(ids), 0u);
  EXPECT_EQ(Cached(ids), kBlock);
}

constexpr char kTurnsTemplate[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}";
// A template like those of the first chat models: the system text is part of the first user
// message.
constexpr char kWithinTheUsers[] =
    "{% if messages[0].role == 'system' %}"
    "{% if messages|length == 1 %}{{ raise_exception('no user') }}{% endif %}"
    "[INST]<<{{ messages[0].content }}>>{{ messages[1].content }}[/INST]"
    "{% else %}[INST]{{ messages[0].content }}[/INST]{% endif %}";

TEST_F(PrefixCallsTest, AConversationsSystemPartIsKeptByItself) {
  for (const char* chat_template : {kTurnsTemplate, kWithinTheUsers}) {
    Serve(chat_template);
    const std::string system = Text(3 * kBlock, 's');
    const std::string users = Text(2 * kBlock, 'u');
    const v1::GenerateRequest first = MakeRequest(
                                  ToConversation({{"system", system}, {"user", users + "1"}})),
                              second = MakeRequest(
                                  ToConversation({{"system", system}, {"user", users + "2"}}));
    const auto system_part = AllOf(Ge(3 * kBlock), Le(3 * kBlock + 16));
    EXPECT_EQ(Cached(first), 0u);
    EXPECT_THAT(Cached(second), system_part) << chat_template;
    const std::vector<uint32_t> hit = tokens_;
    EXPECT_THAT(Cached(second), Ge(5 * kBlock)) << "all before the answer is kept";
    EXPECT_EQ(Cached(MakeRequest(ToConversation({{"user", system + users}}))), 0u);
    const auto alone = MakeRequest(ToConversation({{"system", system}, {"user", "3"}}));
    EXPECT_THAT(Cached(alone), system_part);
    v1::GenerateRequest none = second;
    none.mutable_prompt()->set_cacheable(false);
    EXPECT_EQ(Cached(none), 0u);
    Serve(chat_template, 0);
    EXPECT_EQ(Cached(second), 0u);
    EXPECT_EQ(tokens_, hit);
  }
}

TEST_F(PrefixCallsTest, SystemMessagesAloneAreAllTheirOwnPart) {
  TestServer& server = Serve(kTurnsTemplate);
  const std::string system = Text(2 * kBlock, 's');
  v1::CreateSessionRequest create;
  v1::Conversation& conversation = *create.mutable_prompt()->mutable_conversation();
  conversation = ToConversation({{"system", "Be."}, {"developer", system}});
  conversation.set_add_generation_prompt(false);
  server.NewSession(create);
  EXPECT_THAT(Cached(MakeRequest(
                  ToConversation({{"system", "Be."}, {"developer", system}, {"user", "Hi"}}))),
              AllOf(Ge(2 * kBlock), Le(2 * kBlock + 32)));
}

TEST_F(PrefixCallsTest, TheFirstTurnOfAChat) {
  TestServer& server = Serve(kTurnsTemplate);
  const v1::Conversation conversation =
      ToConversation({{"system", Text(2 * kBlock, 's')}, {"user", "Hi"}});
  EXPECT_EQ(Cached(MakeRequest(conversation)), 0u);
  grpc::ClientContext context;
  const auto stream = server.inference().Chat(&context);
  v1::ChatResponse opened;
  ASSERT_TRUE(stream->Write(OpenMessage()));
  ASSERT_TRUE(stream->Read(&opened));
  v1::ChatRequest message = TurnMessage("", 8);
  *message.mutable_turn()->mutable_prompt()->mutable_conversation() = conversation;
  Collected first, second;
  ASSERT_TRUE(stream->Write(message));
  ASSERT_TRUE(ReadTurn(*stream, first));
  EXPECT_THAT(first.started.cached_tokens(), AllOf(Ge(2 * kBlock), Le(2 * kBlock + 16)))
      << "of a session's first turn the system part";
  EXPECT_EQ(first.tokens, tokens_);
  v1::ChatRequest next = TurnMessage(Text(2 * kBlock, 's'), 8);
  next.mutable_turn()->mutable_prompt()->set_cacheable(true);  // not at the start of a session
  ASSERT_TRUE(stream->Write(next));
  ASSERT_TRUE(ReadTurn(*stream, second));
  EXPECT_EQ(second.started.cached_tokens(), first.finished.at(0).usage().position());
  EXPECT_TRUE(stream->WritesDone());
  EXPECT_THAT(stream->Finish(), Succeeds());
}

}  // namespace
}  // namespace ovq::server::test
