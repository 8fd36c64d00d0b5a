// The Chat call: one stream is one conversation.
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

constexpr uint32_t kUnendingTurn = 4'000'000;

class Chat : public testing::Test {
 protected:
  std::unique_ptr<ChatStream> Open(grpc::ClientContext& context,
                                   const v1::ChatRequest& open = OpenMessage()) {
    auto stream = server_.inference().Chat(&context);
    EXPECT_TRUE(stream->Write(open));
    v1::ChatResponse response;
    EXPECT_TRUE(stream->Read(&response));
    EXPECT_TRUE(response.has_opened());
    session_ = response.opened().session();
    return stream;
  }
  Collected Turn(ChatStream& stream, const v1::ChatRequest& message) {
    Collected turn;
    EXPECT_TRUE(stream.Write(message));
    EXPECT_TRUE(ReadTurn(stream, turn));
    return turn;
  }
  // The status of a stream that ends after this first message.
  grpc::Status EndAfter(const v1::ChatRequest& message) {
    grpc::ClientContext context;
    auto stream = server_.inference().Chat(&context);
    EXPECT_TRUE(stream->Write(message));
    for (v1::ChatResponse response; stream->Read(&response);) {
    }
    return stream->Finish();
  }
  void ExpectNoSessions() {
    server_.WaitForStats([](const engine::EngineStats& s) {
      return s.sessions_active + s.sessions_idle == 0 && s.state_bytes_reserved == 0;
    });
  }

  TestServer server_;
  v1::Session session_;
};

TEST_F(Chat, TurnsContinueOneSession) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  EXPECT_EQ(session_.session_id().size(), 32u);
  const Collected first = Turn(*stream, TurnMessage("ab", 10));
  const Collected second = Turn(*stream, TurnMessage("cd", 10));
  EXPECT_EQ(first.finished.at(0).usage().position(), 12u);
  EXPECT_EQ(second.started.cached_tokens(), 12u);
  EXPECT_EQ(second.finished.at(0).usage().position(), 24u);
  stream->WritesDone();
  EXPECT_THAT(stream->Finish(), Succeeds());
  ExpectNoSessions();

  // One-shot calls over the whole text give the same answer.
  std::vector<uint32_t> all = {'a', 'b'};
  EXPECT_EQ(first.tokens, Generate(server_.inference(), TokenRequest(all, 10)).tokens);
  all.insert(all.end(), first.tokens.begin(), first.tokens.end());
  all.insert(all.end(), {'c', 'd'});
  EXPECT_EQ(second.tokens, Generate(server_.inference(), TokenRequest(all, 10)).tokens);
}

TEST_F(Chat, AbsentOptionsRepeatTheLastTurns) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  Turn(*stream, TurnMessage("ab", 7));
  v1::ChatRequest plain;
  plain.mutable_turn()->mutable_prompt()->set_text("cd");
  const Collected second = Turn(*stream, plain);
  EXPECT_EQ(second.tokens.size(), 7u);
  EXPECT_EQ(second.started.seed(), 1u);
}

TEST_F(Chat, PartsEqualOneTurn) {
  const std::string text(10'000, 'x');
  grpc::ClientContext whole_context;
  const auto whole = Open(whole_context);
  const Collected expected = Turn(*whole, TurnMessage(text, 10));

  grpc::ClientContext context;
  const auto stream = Open(context);
  // Sends all parts at once, without waiting for acknowledgements.
  for (int i = 0; i < 9; ++i) {
    ASSERT_TRUE(stream->Write(TurnMessage(text.substr(0, 1000), 5, /*more=*/true)));
  }
  ASSERT_TRUE(stream->Write(TurnMessage(text.substr(0, 1000), 10)));
  for (int i = 0; i < 9; ++i) {
    v1::ChatResponse response;
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_TRUE(response.has_absorbed()) << response.DebugString();
    EXPECT_EQ(response.absorbed().position(), static_cast<uint64_t>(i + 1) * 1000);
  }
  Collected turn;
  ASSERT_TRUE(ReadTurn(*stream, turn));
  EXPECT_EQ(turn.tokens, expected.tokens);
}

TEST_F(Chat, CancelledTurnKeepsTheSession) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  ASSERT_TRUE(stream->Write(TurnMessage("ab", kUnendingTurn)));
  v1::ChatResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(stream->Write(CancelMessage()));
  Collected cancelled;
  ASSERT_TRUE(ReadTurn(*stream, cancelled));
  EXPECT_EQ(cancelled.finished.at(0).reason(), v1::FINISH_REASON_CANCELLED);
  ASSERT_TRUE(stream->Write(CancelMessage()));  // no turn runs: no effect
  const Collected next = Turn(*stream, TurnMessage("cd", 5));
  EXPECT_EQ(next.tokens.size(), 5u);
  EXPECT_EQ(next.started.cached_tokens(), cancelled.finished.at(0).usage().position());
}

TEST_F(Chat, ATurnThatIsCancelledBeforeItBeginsKeepsTheSession) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  Turn(*stream, TurnMessage("ab", 5));
  // The cancel comes while the text is tokenized.
  ASSERT_TRUE(stream->Write(TurnMessage(std::string(900'000, 'x'), kUnendingTurn)));
  ASSERT_TRUE(stream->Write(CancelMessage()));
  Collected cancelled;
  ASSERT_TRUE(ReadTurn(*stream, cancelled));
  EXPECT_EQ(cancelled.finished.at(0).reason(), v1::FINISH_REASON_CANCELLED);
  const Collected next = Turn(*stream, TurnMessage("cd", 5));
  EXPECT_EQ(next.tokens.size(), 5u);
  EXPECT_EQ(next.started.cached_tokens(), cancelled.finished.at(0).usage().position());
}

TEST_F(Chat, HalfCloseLetsTheTurnFinish) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  ASSERT_TRUE(stream->Write(TurnMessage("ab", 500)));
  stream->WritesDone();
  Collected turn;
  ASSERT_TRUE(ReadTurn(*stream, turn));
  EXPECT_EQ(turn.tokens.size(), 500u);
  v1::ChatResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_THAT(stream->Finish(), Succeeds());
  ExpectNoSessions();
}

TEST_F(Chat, DisconnectDeletesTheSession) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  ASSERT_TRUE(stream->Write(TurnMessage("ab", kUnendingTurn)));
  v1::ChatResponse response;
  ASSERT_TRUE(stream->Read(&response));
  context.TryCancel();
  stream->Finish();
  ExpectNoSessions();
}

TEST_F(Chat, KeptSessionOutlivesTheStream) {
  v1::ChatRequest open = OpenMessage();
  open.mutable_open()->set_keep_session(true);
  grpc::ClientContext context;
  const auto stream = Open(context, open);
  Turn(*stream, TurnMessage("ab", 5));
  stream->WritesDone();
  EXPECT_THAT(stream->Finish(), Succeeds());

  v1::ChatRequest again = OpenMessage();
  again.mutable_open()->set_session_id(session_.session_id());
  grpc::ClientContext second_context;
  const auto second = Open(second_context, again);
  EXPECT_EQ(session_.position(), 7u);
  second_context.TryCancel();
  second->Finish();
  server_.WaitForStats([](const engine::EngineStats& s) { return s.sessions_idle == 1; });
}

TEST_F(Chat, ATurnExpectsAPosition) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  v1::ChatRequest turn = TurnMessage("ab", 5);
  turn.mutable_turn()->set_expected_position(0);
  EXPECT_EQ(Turn(*stream, turn).started.position(), 0u);
  EXPECT_EQ(Turn(*stream, TurnMessage("cd", 5)).started.position(), 7u);  // set for one turn only
  ASSERT_TRUE(stream->Write(turn));
  for (v1::ChatResponse response; stream->Read(&response);) {
  }
  EXPECT_THAT(stream->Finish(), Fails(grpc::StatusCode::FAILED_PRECONDITION,
                                      "turn.expected_position: the session has 14 tokens, not 0"));
  ExpectNoSessions();
}

TEST_F(Chat, ATurnWhileOneRunsIsRefused) {
  grpc::ClientContext context;
  const auto stream = Open(context);
  ASSERT_TRUE(stream->Write(TurnMessage("ab", kUnendingTurn)));
  ASSERT_TRUE(stream->Write(TurnMessage("cd", 5)));
  for (v1::ChatResponse response; stream->Read(&response);) {
  }
  EXPECT_THAT(stream->Finish(), Fails(grpc::StatusCode::FAILED_PRECONDITION, "turn: "));
  ExpectNoSessions();
}

TEST_F(Chat, WrongMessagesNameTheCulprit) {
  EXPECT_THAT(EndAfter(TurnMessage("ab", 5)), Fails(kInvalid, "expected open as the first"));
  EXPECT_THAT(EndAfter(v1::ChatRequest()), Fails(kInvalid, "expected open as the first"));
  v1::ChatRequest open = OpenMessage();
  open.mutable_open()->mutable_ttl()->set_seconds(-5);
  EXPECT_THAT(EndAfter(open), Fails(kInvalid, "open.ttl: "));
  open = OpenMessage();
  open.mutable_open()->set_max_centroids(1);
  EXPECT_THAT(EndAfter(open), Fails(kInvalid, "open.max_centroids: "));
  open = OpenMessage();
  open.mutable_open()->set_memory("most");
  EXPECT_THAT(EndAfter(open), Fails(kInvalid, "open.memory: expected one of model (--memory)"));
  open = OpenMessage();
  open.mutable_open()->set_session_id("feed");
  EXPECT_THAT(EndAfter(open), Fails(grpc::StatusCode::NOT_FOUND, "feed"));
  open.mutable_open()->set_memory("model");
  EXPECT_THAT(EndAfter(open), Fails(kInvalid, "open: expected memory, max_centroids and ttl only"));

  const auto after_open = [&](const v1::ChatRequest& message) {
    grpc::ClientContext context;
    const auto stream = Open(context);
    EXPECT_TRUE(stream->Write(message));
    for (v1::ChatResponse response; stream->Read(&response);) {
    }
    return stream->Finish();
  };
  v1::ChatRequest bad_sampling = TurnMessage("ab", 5);
  bad_sampling.mutable_turn()->mutable_sampling()->set_top_p(7);
  EXPECT_THAT(after_open(bad_sampling), Fails(kInvalid, "turn.sampling.top_p: "));
  EXPECT_THAT(after_open(OpenMessage()), Fails(kInvalid, "open: "));
  EXPECT_THAT(after_open(v1::ChatRequest()), Fails(kInvalid, "event: "));
  EXPECT_THAT(after_open(TurnMessage("", 5)), Fails(kInvalid, "turn.prompt: "));
  EXPECT_THAT(after_open(TurnMessage("", 5, /*more=*/true)), Fails(kInvalid, "turn.prompt: "));
  ExpectNoSessions();
}

}  // namespace
}  // namespace ovq::server::test
