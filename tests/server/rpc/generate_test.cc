// Generate over the wire: streams, refusals, early ends.
#include <limits>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

TEST(Generate, StreamingEqualsCollected) {
  TestServer server;
  const v1::GenerateRequest request = TextRequest("hello", 20);
  const Collected over_wire = Generate(server.inference(), request);
  ASSERT_THAT(over_wire.status, Succeeds());

  engine::GenerateRequest direct = engine::test::SampleRequest({'h', 'e', 'l', 'l', 'o'}, 20);
  direct.output.logprobs = true;
  auto stream = std::make_shared<engine::TokenStream>();
  ASSERT_TRUE(server.engine().Submit(direct, stream).ok());
  const engine::test::Answers answers = engine::test::ReadAll(*stream);
  const std::vector<uint32_t> tokens(answers.of[0].tokens.begin(), answers.of[0].tokens.end());
  EXPECT_EQ(over_wire.tokens, tokens);
  EXPECT_EQ(over_wire.logprobs, answers.of[0].logprobs);
  EXPECT_EQ(over_wire.text, answers.of[0].text);
  EXPECT_EQ(over_wire.tokens.size(), 20u);
  EXPECT_GT(over_wire.chunks, 1);

  EXPECT_EQ(over_wire.started.seed(), 1u);
  EXPECT_EQ(over_wire.started.prompt_tokens(), 5u);
  EXPECT_EQ(over_wire.started.session_id(), "");
  ASSERT_EQ(over_wire.finished.size(), 1u);
  EXPECT_EQ(over_wire.finished[0].reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(over_wire.finished[0].usage().generated_tokens(), 20u);
  EXPECT_EQ(over_wire.finished[0].usage().prompt_tokens(), 5u);
  EXPECT_GT(over_wire.finished[0].usage().state_bytes(), 0u);
}

TEST(Generate, TextAndTokenIdsAgree) {
  TestServer server;
  const Collected text = Generate(server.inference(), TextRequest("abc", 8));
  const Collected ids = Generate(server.inference(), TokenRequest({'a', 'b', 'c'}, 8));
  EXPECT_EQ(text.tokens, ids.tokens);
}

TEST(Generate, ZeroIsAValue) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 8);
  request.mutable_sampling()->set_seed(0);
  request.mutable_sampling()->set_temperature(0);
  const Collected first = Generate(server.inference(), request);
  EXPECT_EQ(first.started.seed(), 0u);
  EXPECT_EQ(first.tokens, Generate(server.inference(), request).tokens);
  request.mutable_stop()->set_max_tokens(0);
  const Collected nothing = Generate(server.inference(), request);
  EXPECT_THAT(nothing.status, Succeeds());
  EXPECT_TRUE(nothing.tokens.empty());
  request.mutable_sampling()->clear_seed();
  EXPECT_NE(Generate(server.inference(), request).started.seed(), 0u);
}

TEST(Generate, SeveralCompletions) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 5);
  request.mutable_sampling()->set_n(3);
  const Collected result = Generate(server.inference(), request);
  EXPECT_THAT(result.status, Succeeds());
  EXPECT_EQ(result.finished.size(), 3u);
  EXPECT_EQ(result.tokens.size(), 15u);
}

TEST(Generate, StopsSayWhatMatched) {
  TestServer server(
      {.setup = [](engine::test::FakeModel& model) { model.Script(3, "xyz END more"); }});
  v1::GenerateRequest request = TextRequest("abc", 50);
  request.mutable_stop()->add_stop_strings("END");
  const Collected result = Generate(server.inference(), request);
  EXPECT_EQ(result.text, "xyz ");
  ASSERT_EQ(result.finished.size(), 1u);
  EXPECT_EQ(result.finished[0].reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(result.finished[0].matched_stop(), "END");
}

// Bad inputs: the code, the name of the field, and a server that goes on.
TEST(Generate, BadInputsNameTheCulprit) {
  TestServer server;
  const auto with = [](const std::function<void(v1::GenerateRequest&)>& change) {
    v1::GenerateRequest request = TextRequest("abc", 4);
    change(request);
    return request;
  };
  using R = v1::GenerateRequest;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    v1::GenerateRequest request;
    grpc::StatusCode code;
    const char* message;
  } cases[] = {
      {TokenRequest({1, 2, 258, 3}, 4), kInvalid,
       "prompt.token_ids.ids[2]: expected a token id below 258, got 258"},
      {TokenRequest({4294967295u}, 4), kInvalid, "prompt.token_ids.ids[0]"},
      {TokenRequest({}, 4), kInvalid, "prompt: expected at least one token"},
      {TextRequest("", 4), kInvalid, "prompt: expected at least one token"},
      {with([](R& r) { r.clear_prompt(); }), kInvalid, "prompt: "},
      {with([](R& r) { r.mutable_sampling()->set_temperature(kNan); }), kInvalid,
       "sampling.temperature: expected [0, 100], got nan"},
      {with([](R& r) { r.mutable_sampling()->set_temperature(-1); }), kInvalid,
       "sampling.temperature: "},
      {with([](R& r) { r.mutable_sampling()->set_top_p(0); }), kInvalid,
       "sampling.top_p: expected (0, 1], got 0"},
      {with([](R& r) { r.mutable_sampling()->set_top_p(1.5); }), kInvalid,
       "sampling.top_p: expected (0, 1], got 1.5"},
      {with([](R& r) { r.mutable_sampling()->set_top_k(4000000000u); }), kInvalid,
       "sampling.top_k: "},
      {with([](R& r) { r.mutable_sampling()->set_min_p(2); }), kInvalid, "sampling.min_p: "},
      {with([](R& r) { r.mutable_sampling()->set_typical_p(0); }), kInvalid,
       "sampling.typical_p: "},
      {with([](R& r) { r.mutable_sampling()->set_repetition_penalty(0); }), kInvalid,
       "sampling.repetition_penalty: "},
      {with([](R& r) { r.mutable_sampling()->set_presence_penalty(-3); }), kInvalid,
       "sampling.presence_penalty: expected [-2, 2], got -3"},
      {with([](R& r) { r.mutable_sampling()->set_frequency_penalty(kNan); }), kInvalid,
       "sampling.frequency_penalty: "},
      {with([](R& r) { r.mutable_sampling()->set_n(0); }), kInvalid,
       "sampling.n: expected 1 to 64, got 0"},
      {with([](R& r) { r.mutable_sampling()->set_n(4000000000u); }), kInvalid, "sampling.n: "},
      {with([](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[258] = 1; }), kInvalid,
       "sampling.logit_bias: expected a token id below 258"},
      {with([](R& r) { (*r.mutable_sampling()->mutable_logit_bias())[7] = 101; }), kInvalid,
       "sampling.logit_bias[7]: "},
      {with([](R& r) { r.mutable_stop()->set_min_tokens(5); }), kInvalid, "stop.min_tokens: "},
      {with([](R& r) { r.mutable_stop()->add_stop_strings(""); }), kInvalid,
       "stop.stop_strings[0]: "},
      {with([](R& r) {
         for (int i = 0; i < 17; ++i) r.mutable_stop()->add_stop_strings(std::string(1, 'x'));
       }),
       kInvalid, "stop.stop_strings: expected at most 16, got 17"},
      {with([](R& r) { r.mutable_stop()->add_stop_token_ids(300); }), kInvalid,
       "stop.stop_token_ids[0]: "},
      {with([](R& r) { r.mutable_output()->set_top_logprobs(259); }), kInvalid,
       "output.top_logprobs: "},
      {with([](R& r) { r.set_max_centroids(0); }), kInvalid, "max_centroids: expected 2 to "},
      {with([](R& r) { r.set_max_centroids(70000); }), kInvalid, "max_centroids: "},
      {with([](R& r) { r.set_session_id(""); }), kInvalid, "session_id: "},
      {with([](R& r) { r.set_session_id("feed"); }), grpc::StatusCode::NOT_FOUND, "feed"},
      {with([](R& r) {
         r.set_session_id("feed");
         r.mutable_sampling()->set_n(2);
       }),
       kInvalid, "sampling.n: expected 1 with a session"},
      {with([](R& r) {
         r.set_session_id("feed");
         r.set_max_centroids(64);
       }),
       kInvalid, "max_centroids: "},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Generate(server.inference(), c.request).status, Fails(c.code, c.message));
  }
  EXPECT_THAT(Generate(server.inference(), TextRequest("abc", 4)).status, Succeeds());
}

google::protobuf::UnknownFieldSet& Unknown(google::protobuf::Message& message) {
  return *message.GetReflection()->MutableUnknownFields(&message);
}

TEST(Generate, UnknownFieldsAreSkipped) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 4);
  const Collected expected = Generate(server.inference(), request);
  Unknown(*request.mutable_sampling()).AddVarint(99, 1);
  Unknown(request).AddLengthDelimited(98, std::string(1000, '\xff'));
  Unknown(request).AddGroup(97)->AddFixed64(1, 2);
  const Collected result = Generate(server.inference(), request);
  EXPECT_THAT(result.status, Succeeds());
  EXPECT_EQ(result.tokens, expected.tokens);
}

// Refused before they are parsed: empty ones take two bytes each.
TEST(Generate, TooManyPartsAreRefused) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 4);
  for (int i = 0; i < 70'000; ++i) request.mutable_stop()->add_stop_strings("");
  EXPECT_THAT(Generate(server.inference(), request).status,
              Fails(grpc::StatusCode::INVALID_ARGUMENT,
                    "ovq.v1.GenerateRequest: expected at most 65536 messages and texts, got more"));
  v1::GenerateRequest talk = TextRequest("", 4);
  for (int i = 0; i < 70'000; ++i) talk.mutable_prompt()->mutable_conversation()->add_messages();
  EXPECT_THAT(Generate(server.inference(), talk).status,
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "at most 65536 messages and texts"));
}

// Counted together, at any depth: each would take many times its bytes once parsed.
TEST(Generate, TooManyUnknownFieldsAreRefused) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 4);
  for (int i = 0; i < 20'000; ++i) {  // two bytes each
    Unknown(*request.mutable_sampling()).AddVarint(15, 1);
    Unknown(*request.mutable_prompt()).AddGroup(15);
  }
  EXPECT_THAT(Generate(server.inference(), request).status,
              Fails(grpc::StatusCode::INVALID_ARGUMENT,
                    "ovq.v1.GenerateRequest: expected at most 65536 bytes of fields that this "
                    "server does not know, got more"));
  // One group of many fields, which is not walked to its end.
  v1::GenerateRequest grouped = TextRequest("abc", 4);
  google::protobuf::UnknownFieldSet& group = *Unknown(grouped).AddGroup(15);
  for (int i = 0; i < 40'000; ++i) group.AddVarint(1, 1);
  EXPECT_THAT(Generate(server.inference(), grouped).status,
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "does not know, got more"));
  // A known field with another wire type counts as unknown, too.
  v1::GenerateRequest mistyped = TextRequest("abc", 4);
  Unknown(mistyped).AddLengthDelimited(6, std::string(70'000, 'x'));  // max_centroids
  EXPECT_THAT(Generate(server.inference(), mistyped).status,
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "at most 65536 bytes"));
  // Known fields may be large.
  EXPECT_THAT(Generate(server.inference(), TextRequest(std::string(70'000, 'a'), 1)).status,
              Succeeds());
}

// Bytes that generated clients never send.
TEST(Generate, BrokenBytesAreInvalidArguments) {
  TestServer server;
  const auto send = [&](const std::string& bytes) {
    std::string answer;
    return RawCall(server.channel(), "/ovq.v1.InferenceService/Tokenize", bytes, answer);
  };
  EXPECT_THAT(send("\x0a\x02\xff\xfe"), Fails(grpc::StatusCode::INVALID_ARGUMENT,
                                              "ovq.v1.TokenizeRequest.text: expected UTF-8"));
  EXPECT_THAT(send("\x0a\x7f"),
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "not a ovq.v1.TokenizeRequest"));
  EXPECT_THAT(send("\x0b"),
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "not a ovq.v1.TokenizeRequest"));
  EXPECT_THAT(send("\x0a\x01\x61"), Succeeds());
  // Deep inside, within a list.
  v1::GenerateRequest request = TextRequest("abc", 4);
  std::string answer, bytes = request.SerializeAsString();
  bytes += "\x22\x06\x12\x01x\x12\x01\xff";
  EXPECT_THAT(RawCall(server.channel(), "/ovq.v1.InferenceService/Generate", bytes, answer),
              Fails(grpc::StatusCode::INVALID_ARGUMENT,
                    "ovq.v1.StopConditions.stop_strings: expected UTF-8"));
}

TEST(Generate, ErrorsCarryTheirFacts) {
  engine::EngineOptions engine;
  engine.state_memory_bytes = 20'000;
  TestServer server({.engine = engine});
  v1::GenerateRequest request = TextRequest("abc", 4);
  request.mutable_sampling()->set_top_p(2);
  const grpc::Status bad = Generate(server.inference(), request).status;
  EXPECT_EQ(GetErrorInfo(bad).field(), "sampling.top_p");
  EXPECT_EQ(GetErrorInfo(bad).reason(), "");
  const grpc::Status large =
      Generate(server.inference(), TextRequest(std::string(3000, 'a'), 5)).status;
  EXPECT_EQ(large.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const v1::ErrorInfo info = GetErrorInfo(large);
  EXPECT_EQ(info.reason(), "state_memory");
  EXPECT_EQ(info.bytes_needed(),
            server.model().layout().bytes_at(3005, engine::test::kDefaultSlotCap));
  EXPECT_EQ(info.bytes_free(), 20'000u);
  EXPECT_FALSE(info.has_retry_after());
  EXPECT_THAT(server.LogText(), HasSubstr("\"reason\":\"state_memory\""));
  request = TextRequest("abc", 4);
  request.set_session_id("feed");
  EXPECT_EQ(Generate(server.inference(), request).status.error_details(), "") << "no facts";
  TestServer roomy;
  request.set_session_id(roomy.NewSession());
  request.set_expected_position(7);
  const grpc::Status elsewhere = Generate(roomy.inference(), request).status;
  EXPECT_EQ(elsewhere.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(GetErrorInfo(elsewhere).has_position());
  EXPECT_EQ(GetErrorInfo(elsewhere).position(), 0u);
}

TEST(Generate, TenMegabytePromptIsRefusedByItsLimit) {
  TestServer server;
  EXPECT_THAT(Generate(server.inference(), TextRequest(std::string(10'000'000, 'a'), 4)).status,
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "at most 1048576 tokens"));
}

TEST(Generate, MessageLimit) {
  TestServer server({.max_message_bytes = 1000});
  EXPECT_THAT(Generate(server.inference(), TextRequest(std::string(2000, 'a'), 4)).status,
              Fails(grpc::StatusCode::RESOURCE_EXHAUSTED, "larger than max"));
}

TEST(Generate, TextNeedsATokenizer) {
  TestServer server({.model = {.with_text = false}});
  EXPECT_THAT(Generate(server.inference(), TextRequest("abc", 4)).status,
              Fails(grpc::StatusCode::FAILED_PRECONDITION, "prompt.text: "));
  EXPECT_THAT(Generate(server.inference(), TokenRequest({1, 2}, 4)).status, Succeeds());
  v1::GenerateRequest request = TokenRequest({1, 2}, 4);
  request.mutable_stop()->add_stop_strings("x");
  EXPECT_THAT(Generate(server.inference(), request).status,
              Fails(grpc::StatusCode::FAILED_PRECONDITION, "stop.stop_strings: "));
}

TEST(Generate, CancelFreesTheState) {
  TestServer server;
  grpc::ClientContext context;
  const auto reader = server.inference().Generate(&context, TextRequest("abc", 4'000'000));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(reader->Read(&response));
  server.WaitForStats([](const engine::EngineStats& s) { return s.state_bytes_reserved > 0; });
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  const engine::EngineStats stats =
      server.WaitForStats([](const engine::EngineStats& s) { return s.state_bytes_reserved == 0; });
  EXPECT_EQ(stats.requests_running, 0);
  EXPECT_EQ(stats.state_bytes_committed, 0u);
}

TEST(Generate, DeadlineEndsTheRequest) {
  TestServer server;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const Collected result = Generate(server.inference(), TextRequest("abc", 4'000'000), context);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  server.WaitForStats([](const engine::EngineStats& s) {
    return s.requests_running == 0 && s.state_bytes_reserved == 0;
  });
}

TEST(Generate, SlowClientHoldsUpNobodyElse) {
  TestServer server;
  const auto slow_stub = v1::InferenceService::NewStub(server.NewChannel());
  grpc::ClientContext slow_context;
  v1::GenerateRequest endless = TextRequest("slow", 4'000'000);
  endless.mutable_output()->set_top_logprobs(200);  // fills the transport's windows soon
  const auto slow = slow_stub->Generate(&slow_context, endless);
  server.WaitForStats([](const engine::EngineStats& s) { return s.requests_running == 1; });
  // Its client never reads: the request is blocked once its stream is full.
  int64_t steps = -1;
  for (int i = 0; i < 500 && steps != server.model().gate().steps(); ++i) {
    steps = server.model().gate().steps();
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  EXPECT_EQ(server.engine().Stats().requests_running, 1);
  const Collected quick = Generate(server.inference(), TextRequest("quick", 100));
  EXPECT_THAT(quick.status, Succeeds());
  EXPECT_EQ(quick.tokens.size(), 100u);
  slow_context.TryCancel();
  server.WaitForStats([](const engine::EngineStats& s) { return s.requests_running == 0; });
}

TEST(Generate, ManyStreamsAtOnce) {
  TestServer server;
  const Collected alone = Generate(server.inference(), TextRequest("same", 50));
  std::vector<Collected> results(32);
  std::vector<std::thread> threads;
  for (Collected& result : results) {
    threads.emplace_back([&] { result = Generate(server.inference(), TextRequest("same", 50)); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Collected& result : results) {
    EXPECT_THAT(result.status, Succeeds());
    EXPECT_EQ(result.tokens, alone.tokens);
    EXPECT_EQ(result.logprobs, alone.logprobs);
  }
}

}  // namespace
}  // namespace ovq::server::test
