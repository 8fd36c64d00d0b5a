// Unary calls, sessions, tenants, health, reflection, draining. Session files:
// session_transfer_test.cc.
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;

using Inference = v1::InferenceService::Stub;
using Sessions = v1::SessionService::Stub;

v1::ScoreRequest MakeScoreRequest(const std::string& text) {
  v1::ScoreRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

TEST(Unary, ScoreGivesEveryToken) {
  TestServer server;
  v1::ScoreRequest request = MakeScoreRequest("hello");
  request.set_top_logprobs(3);
  v1::ScoreResponse response;
  ASSERT_THAT(Call(server.inference(), &Inference::Score, request, response), Succeeds());
  EXPECT_THAT(response.token_ids(), ElementsAre('h', 'e', 'l', 'l', 'o'));
  EXPECT_EQ(response.logprobs_size(), 4);
  EXPECT_EQ(response.top_size(), 5);
  EXPECT_EQ(response.top(0).token_ids_size(), 3);
  for (float logprob : response.logprobs()) EXPECT_LT(logprob, 0);
}

TEST(Unary, ScoreRefusesBadRequests) {
  TestServer server;
  v1::ScoreResponse response;
  EXPECT_THAT(Call(server.inference(), &Inference::Score, v1::ScoreRequest(), response),
              Fails(kInvalid, "prompt: "));
  v1::ScoreRequest request = MakeScoreRequest("hello");
  request.set_top_logprobs(259);
  EXPECT_THAT(Call(server.inference(), &Inference::Score, request, response),
              Fails(kInvalid, "top_logprobs: "));
  request = MakeScoreRequest(std::string(900'000, 'x'));
  request.set_top_logprobs(258);
  EXPECT_THAT(Call(server.inference(), &Inference::Score, request, response),
              Fails(kInvalid, "below 64 MiB"));
}

TEST(Unary, CancelledScoreFreesItsState) {
  TestServer server;
  server.model().gate().CloseAt(2);
  grpc::ClientContext context;
  v1::ScoreResponse response;
  std::thread caller([&] {
    EXPECT_FALSE(server.inference()
                     .Score(&context, MakeScoreRequest(std::string(1'000'000, 'x')), &response)
                     .ok());
  });
  server.model().gate().AwaitEntered(2);
  context.TryCancel();
  caller.join();
  server.model().gate().Open();
  server.WaitForStats([](const engine::EngineStats& s) { return s.requests_running == 0; });
}

TEST(Unary, TokenizeAndBack) {
  TestServer server;
  v1::TokenizeRequest request;
  request.set_text("h\xc3\xa9");
  v1::TokenizeResponse tokens;
  ASSERT_THAT(Call(server.inference(), &Inference::Tokenize, request, tokens), Succeeds());
  EXPECT_THAT(tokens.token_ids(), ElementsAre('h', 0xc3, 0xa9));
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = tokens.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_THAT(Call(server.inference(), &Inference::Detokenize, back, text), Succeeds());
  EXPECT_EQ(text.text(), "h\xc3\xa9");
  back.add_token_ids(0xc3);
  ASSERT_THAT(Call(server.inference(), &Inference::Detokenize, back, text), Succeeds());
  EXPECT_EQ(text.text(), "h\xc3\xa9\xef\xbf\xbd");
  back.add_token_ids(999);
  EXPECT_THAT(Call(server.inference(), &Inference::Detokenize, back, text),
              Fails(kInvalid, "token_ids[4]: "));
}

TEST(Unary, LongTextsAreRefusedBeforeTheyAreTokenized) {
  TestServerOptions options;
  options.engine.max_prompt_tokens = 10;
  TestServer server(options);
  v1::TokenizeRequest request;
  request.set_text(std::string(640, 'x'));
  v1::TokenizeResponse response;
  EXPECT_THAT(Call(server.inference(), &Inference::Tokenize, request, response), Succeeds());
  request.mutable_text()->push_back('x');
  EXPECT_THAT(Call(server.inference(), &Inference::Tokenize, request, response),
              Fails(kInvalid, "text: expected at most 640 bytes, 64 times --max-prompt-tokens"));
  v1::ScoreResponse scored;
  EXPECT_THAT(
      Call(server.inference(), &Inference::Score, MakeScoreRequest(std::string(641, 'x')), scored),
      Fails(kInvalid, "prompt.text: expected at most 640 bytes"));
}

TEST(Unary, ModelInfo) {
  TestServer server;
  v1::GetModelInfoRequest request;
  v1::ModelInfo info;
  ASSERT_THAT(Call(server.inference(), &Inference::GetModelInfo, request, info), Succeeds());
  EXPECT_EQ(info.vocab_size(), static_cast<uint64_t>(engine::test::kVocab));
  EXPECT_EQ(info.state_sizes_size(), 3);
  EXPECT_EQ(info.state_sizes(2).position(), 1048576u);
  EXPECT_LE(info.state_sizes(2).state_bytes(), info.state_bytes_cap());
  EXPECT_EQ(info.state_sizes(2).full_kv_cache_bytes(), 1048576000u);
  EXPECT_TRUE(info.has_tokenizer());
  EXPECT_EQ(info.tokenizer(), "bytes");
  EXPECT_EQ(info.limits().max_completions(), 64u);
  EXPECT_EQ(info.limits().max_stop_strings(), 16u);
  EXPECT_EQ(info.limits().max_stop_string_bytes(), 1024u);
  EXPECT_EQ(info.limits().max_stop_token_ids(), 1024u);
  EXPECT_EQ(info.limits().max_logit_bias(), 4096u);
  EXPECT_EQ(info.limits().max_top_logprobs(), 1024u);
  EXPECT_EQ(info.limits().min_centroids(), 2u);
  EXPECT_EQ(info.limits().max_ttl().seconds(), 86400);
  EXPECT_EQ(info.limits().max_page_size(), 1000u);
  EXPECT_EQ(info.limits().max_messages(), 4096u);
  EXPECT_EQ(info.limits().max_role_bytes(), 64u);
  EXPECT_EQ(info.limits().max_tools_bytes(), 1048576u);
  EXPECT_FALSE(info.has_chat_template());
  EXPECT_EQ(info.memory(), "model");
  EXPECT_EQ(info.weights(), "int8");
  EXPECT_EQ(info.exact_tokens(), static_cast<uint64_t>(engine::test::kDefaultSlotCap));
  request.set_max_centroids(100);
  ASSERT_THAT(Call(server.inference(), &Inference::GetModelInfo, request, info), Succeeds());
  EXPECT_EQ(info.exact_tokens(), 100u);
  request.add_positions(uint64_t{1} << 63);
  EXPECT_THAT(Call(server.inference(), &Inference::GetModelInfo, request, info),
              Fails(kInvalid, "positions[0]: "));
}

TEST(SessionCalls, VariantsAreListedAndChosen) {
  TestServer server({.model = {.exact_too = true}});
  v1::GetModelInfoRequest request;
  v1::ModelInfo info;
  ASSERT_THAT(Call(server.inference(), &Inference::GetModelInfo, request, info), Succeeds());
  EXPECT_EQ(info.memory(), "model");
  EXPECT_THAT(info.memories(), testing::ElementsAre("model", "exact"));
  const uint64_t bounded = info.state_bytes_cap();
  request.set_memory("exact");
  ASSERT_THAT(Call(server.inference(), &Inference::GetModelInfo, request, info), Succeeds());
  EXPECT_EQ(info.memory(), "exact");
  EXPECT_GT(info.state_bytes_cap(), bounded);

  v1::CreateSessionRequest create;
  create.set_memory("exact");
  v1::Session session;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, session), Succeeds());
  EXPECT_EQ(session.memory(), "exact");
  EXPECT_EQ(session.state_bytes_cap(), info.state_bytes_cap());
  v1::GenerateRequest one_shot = TextRequest("abc", 20), turn = one_shot;
  one_shot.set_memory("exact");
  turn.set_session_id(session.session_id());
  const auto answer = Generate(server.inference(), turn).tokens;
  EXPECT_EQ(Generate(server.inference(), one_shot).tokens, answer);
  EXPECT_NE(Generate(server.inference(), TextRequest("abc", 20)).tokens, answer);

  for (const char* wrong : {"paper", "Exact"}) {
    create.set_memory(wrong);
    EXPECT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, session),
                Fails(kInvalid, "memory: expected one of model, exact (--memory), got "));
    request.set_memory(wrong);
    EXPECT_THAT(Call(server.inference(), &Inference::GetModelInfo, request, info),
                Fails(kInvalid, "memory: "));
  }
  v1::ScoreRequest score;
  score.mutable_prompt()->set_text("ab");
  score.set_memory("x");
  v1::ScoreResponse scores;
  EXPECT_THAT(Call(server.inference(), &Inference::Score, score, scores),
              Fails(kInvalid, "memory: "));
}

TEST(SessionCalls, LifeOfASession) {
  TestServer server;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text("abc");
  create.mutable_ttl()->set_seconds(60);
  create.set_max_centroids(128);
  v1::Session session;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, session), Succeeds());
  EXPECT_EQ(session.position(), 3u);
  EXPECT_EQ(session.max_centroids(), 128u);
  EXPECT_LE(session.state_bytes(), session.state_bytes_cap());
  EXPECT_EQ(session.expires().seconds() - session.last_used().seconds(), 60);

  v1::GenerateRequest request = TextRequest("d", 5);
  request.set_session_id(session.session_id());
  EXPECT_EQ(Generate(server.inference(), request).tokens,
            Generate(server.inference(), TextRequest("abcd", 5)).tokens);

  v1::GetSessionRequest get;
  get.set_session_id(session.session_id());
  ASSERT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session), Succeeds());
  EXPECT_EQ(session.position(), 9u);
  EXPECT_FALSE(session.busy());

  v1::DeleteSessionRequest erase;
  erase.set_session_id(session.session_id());
  v1::DeleteSessionResponse erased;
  ASSERT_THAT(Call(server.sessions(), &Sessions::DeleteSession, erase, erased), Succeeds());
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session),
              Fails(grpc::StatusCode::NOT_FOUND, session.session_id()));
  EXPECT_THAT(Call(server.sessions(), &Sessions::DeleteSession, erase, erased),
              Fails(grpc::StatusCode::NOT_FOUND, session.session_id()));
  server.WaitForStats([](const engine::EngineStats& s) { return s.state_bytes_reserved == 0; });
}

TEST(SessionCalls, BadRequests) {
  TestServer server;
  v1::Session session;
  v1::CreateSessionRequest create;
  create.mutable_ttl()->set_seconds(-1);
  EXPECT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, session),
              Fails(kInvalid, "ttl: "));
  create.mutable_ttl()->set_seconds(0);
  EXPECT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, session),
              Fails(kInvalid, "ttl: "));
  create.clear_ttl();
  create.mutable_prompt();
  EXPECT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, session),
              Fails(kInvalid, "prompt: "));
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, v1::GetSessionRequest(), session),
              Fails(kInvalid, "session_id: "));
  v1::ListSessionsRequest list;
  list.set_page_size(1001);
  v1::ListSessionsResponse page;
  EXPECT_THAT(Call(server.sessions(), &Sessions::ListSessions, list, page),
              Fails(kInvalid, "page_size: expected at most 1000, got 1001"));
}

TEST(SessionCalls, Pages) {
  TestServer server;
  std::set<std::string> made;
  for (int i = 0; i < 25; ++i) made.insert(server.NewSession());
  std::set<std::string> listed;
  v1::ListSessionsRequest request;
  request.set_page_size(10);
  int pages = 0;
  do {
    v1::ListSessionsResponse page;
    ASSERT_THAT(Call(server.sessions(), &Sessions::ListSessions, request, page), Succeeds());
    for (const v1::Session& session : page.sessions()) listed.insert(session.session_id());
    request.set_page_token(page.next_page_token());
    ++pages;
  } while (!request.page_token().empty());
  EXPECT_EQ(pages, 3);
  EXPECT_EQ(listed, made);
}

grpc::Status CreateWithKey(TestServer& server, const std::string& key, v1::Session& session) {
  grpc::ClientContext context;
  context.AddMetadata("ovq-session", key);
  return server.sessions().CreateSession(&context, v1::CreateSessionRequest(), &session);
}

TEST(SessionCalls, AKeyBeginsTheId) {
  TestServer server;
  const std::string key = "Key-of_" + std::string(57, '7');
  v1::Session session;
  ASSERT_THAT(CreateWithKey(server, key, session), Succeeds());
  EXPECT_THAT(session.session_id(), MatchesRegex(key + "\\.[0-9a-f]{32}"));
  v1::Session other;
  ASSERT_THAT(CreateWithKey(server, key, other), Succeeds());
  EXPECT_NE(session.session_id(), other.session_id());
  v1::GetSessionRequest get;
  get.set_session_id(session.session_id());
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, other), Succeeds());
  for (const std::string& bad :
       {std::string(), std::string(65, 'a'), std::string("a.b"), std::string("a b")}) {
    EXPECT_THAT(CreateWithKey(server, bad, session), Fails(kInvalid, "ovq-session: expected"))
        << bad;
  }
  server.WaitForStats([](const engine::EngineStats& s) { return s.sessions_idle == 2; });
}

TEST(SessionCalls, AKeyBeginsTheIdOfAChat) {
  TestServer server;
  for (const auto& [key, good] : {std::pair("chat-1", true), std::pair("chat 1", false)}) {
    grpc::ClientContext context;
    context.AddMetadata("ovq-session", key);
    const auto chat = server.inference().Chat(&context);
    ASSERT_TRUE(chat->Write(OpenMessage()));
    v1::ChatResponse opened;
    EXPECT_EQ(chat->Read(&opened), good);
    chat->WritesDone();
    EXPECT_THAT(opened.opened().session().session_id(),
                good ? StartsWith("chat-1.") : StartsWith(""));
    const grpc::Status status = chat->Finish();
    EXPECT_EQ(status.error_code(), good ? grpc::StatusCode::OK : kInvalid)
        << status.error_message();
  }
}

TEST(SessionCalls, BusySessionIsRefused) {
  TestServer server;
  v1::GenerateRequest request = TextRequest("abc", 4'000'000);
  request.set_session_id(server.NewSession());
  grpc::ClientContext context;
  const auto first = server.inference().Generate(&context, request);
  v1::GenerateResponse response;
  ASSERT_TRUE(first->Read(&response));
  EXPECT_THAT(Generate(server.inference(), request).status,
              Fails(grpc::StatusCode::FAILED_PRECONDITION, request.session_id()));
  context.TryCancel();
  first->Finish();
}

TEST(SessionCalls, TenantsDoNotSeeEachOther) {
  TestServer server;
  v1::Session session;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, v1::CreateSessionRequest(), session,
                   "alice"),
              Succeeds());
  v1::GetSessionRequest get;
  get.set_session_id(session.session_id());
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session, "alice"), Succeeds());
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session, "bob"),
              Fails(grpc::StatusCode::NOT_FOUND, get.session_id()));
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session),
              Fails(grpc::StatusCode::NOT_FOUND, get.session_id()));
  v1::ListSessionsResponse page;
  ASSERT_THAT(
      Call(server.sessions(), &Sessions::ListSessions, v1::ListSessionsRequest(), page, "bob"),
      Succeeds());
  EXPECT_EQ(page.sessions_size(), 0);
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session, "no blanks"),
              Fails(kInvalid, "ovq-tenant"));
  EXPECT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session, std::string(65, 'a')),
              Fails(kInvalid, "ovq-tenant"));
}

TEST(SessionCalls, Fork) {
  TestServer server;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text("once upon a time");
  v1::Session made;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  v1::ForkSessionRequest fork;
  fork.set_session_id(made.session_id());
  fork.set_count(2);
  fork.mutable_ttl()->set_seconds(77);
  v1::ForkSessionResponse forked;
  ASSERT_THAT(Call(server.sessions(), &Sessions::ForkSession, fork, forked, "bob"), Succeeds());
  ASSERT_EQ(forked.sessions_size(), 2);
  for (const v1::Session& copy : forked.sessions()) {
    EXPECT_NE(copy.session_id(), made.session_id());
    EXPECT_EQ(copy.position(), made.position());
    EXPECT_EQ(copy.state_bytes(), made.state_bytes());
    EXPECT_EQ(copy.expires().seconds() - copy.last_used().seconds(), 77);
  }
  EXPECT_THAT(Call(server.sessions(), &Sessions::ForkSession, fork, forked, "eve"),
              Fails(grpc::StatusCode::NOT_FOUND, "not found"));
  for (const uint32_t count : {0u, 65u, 0xffffffffu}) {
    fork.set_count(count);
    EXPECT_THAT(Call(server.sessions(), &Sessions::ForkSession, fork, forked, "bob"),
                Fails(kInvalid, "count: expected 1 to 64"));
  }
  fork.clear_session_id();
  EXPECT_THAT(Call(server.sessions(), &Sessions::ForkSession, fork, forked, "bob"),
              Fails(kInvalid, "session_id: "));
}

TEST(SessionCalls, Rewind) {
  TestServer server;
  v1::CreateSessionRequest create;
  create.mutable_prompt()->set_text("once upon a time");
  v1::Session made;
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  EXPECT_TRUE(made.keeps_tokens());
  v1::GetSessionRequest get;
  get.set_session_id(made.session_id());
  v1::Session session;
  ASSERT_THAT(Call(server.sessions(), &Sessions::GetSession, get, session, "bob"), Succeeds());
  ASSERT_EQ(session.turns_size(), 1);
  EXPECT_EQ(session.turns(0).position(), made.position());

  v1::RewindSessionRequest rewind;
  rewind.set_session_id(made.session_id());
  rewind.set_position(5);
  rewind.set_dry_run(true);
  v1::RewindSessionResponse response;
  ASSERT_THAT(Call(server.sessions(), &Sessions::RewindSession, rewind, response, "bob"),
              Succeeds());
  EXPECT_EQ(response.replay_tokens(), 4);
  EXPECT_EQ(response.session().position(), made.position());
  rewind.set_dry_run(false);
  ASSERT_THAT(Call(server.sessions(), &Sessions::RewindSession, rewind, response, "bob"),
              Succeeds());
  EXPECT_EQ(response.replay_tokens(), 4);
  EXPECT_EQ(response.session().position(), 5);
  EXPECT_THAT(Call(server.sessions(), &Sessions::RewindSession, rewind, response, "eve"),
              Fails(grpc::StatusCode::NOT_FOUND, "not found"));
  rewind.set_position(6);
  EXPECT_THAT(Call(server.sessions(), &Sessions::RewindSession, rewind, response, "bob"),
              Fails(kInvalid, "position: expected at most 5"));
  create.set_keep_tokens(false);
  ASSERT_THAT(Call(server.sessions(), &Sessions::CreateSession, create, made, "bob"), Succeeds());
  EXPECT_FALSE(made.keeps_tokens());
  rewind.set_session_id(made.session_id());
  EXPECT_THAT(Call(server.sessions(), &Sessions::RewindSession, rewind, response, "bob"),
              Fails(grpc::StatusCode::FAILED_PRECONDITION, "keeps no tokens"));
}

// grpc.health.v1.HealthCheckRequest { string service = 1 } and its answer { status = 1 }.
grpc::Status CheckHealth(TestServer& server, const std::string& service, std::string& answer) {
  std::string request;
  if (!service.empty()) {
    request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  }
  return RawCall(server.channel(), "/grpc.health.v1.Health/Check", request, answer);
}

TEST(Server, HealthFollowsTheDrain) {
  TestServer server;
  std::string answer;
  const std::vector<std::string> services = {"", "ovq.v1.InferenceService",
                                             "ovq.v1.SessionService"};
  for (const std::string& service : services) {
    EXPECT_THAT(CheckHealth(server, service, answer), Succeeds());
    EXPECT_EQ(answer, "\x08\x01") << service;  // SERVING
  }
  EXPECT_EQ(CheckHealth(server, "nobody", answer).error_code(), grpc::StatusCode::NOT_FOUND);
  server.server().SetServing(false);
  for (const std::string& service : services) {
    EXPECT_THAT(CheckHealth(server, service, answer), Succeeds());
    EXPECT_EQ(answer, "\x08\x02") << service;  // NOT_SERVING
  }
}

TEST(Server, HealthChecksRefuseLargeRequests) {
  TestServer server;
  const std::string large = "\xc2\x3e\xd0\x0f" + std::string(2000, 'x');  // an unknown field
  std::string answer;
  EXPECT_THAT(CheckHealth(server, std::string(100, 'x'), answer),
              Fails(grpc::StatusCode::NOT_FOUND, ""));
  const std::string health = "/grpc.health.v1.Health/";
  ASSERT_THAT(RawCall(server.channel(), health + "Check", large, answer), Fails(kInvalid, "parse"));
  // A Watch would keep it for as long as its client likes.
  EXPECT_THAT(RawCall(server.channel(), health + "Watch", large, answer),
              Fails(grpc::StatusCode::INTERNAL, "parse"));
}

TEST(Server, ReflectionListsTheServices) {
  TestServer server;
  std::string answer;
  // ServerReflectionRequest { string list_services = 7 }; the stream's first answer is enough.
  EXPECT_THAT(
      RawCall(server.channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
              "\x3a\x01*", answer),
      Succeeds());
  for (const char* name :
       {"ovq.v1.InferenceService", "ovq.v1.SessionService", "grpc.health.v1.Health"}) {
    EXPECT_THAT(answer, HasSubstr(name));
  }
}

TEST(Server, ReflectionFreesLargeRequests) {
  TestServer server;
  std::string answer;
  // ServerReflectionRequest { string file_containing_symbol = 4 }; the answer has the request in
  // it.
  const auto ask = [&](const std::string& symbol) {
    const std::string length = {static_cast<char>(symbol.size() % 128 + 128),
                                static_cast<char>(symbol.size() / 128)};
    EXPECT_THAT(
        RawCall(server.channel(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                "\x22" + length + symbol, answer),
        Succeeds());
  };
  ask(std::string(1000, 'x'));
  EXPECT_THAT(answer, HasSubstr(std::string(1000, 'x')));
  ask(std::string(2000, 'x'));
  EXPECT_FALSE(answer.empty());
  EXPECT_LT(answer.size(), 100u);
}

TEST(Server, DrainRefusesNewWorkAndEndsIdleChats) {
  TestServer server({.setup = [](engine::test::FakeModel& model) { model.gate().CloseAt(3); }});
  grpc::ClientContext chat_context;
  const auto chat = server.inference().Chat(&chat_context);
  ASSERT_TRUE(chat->Write(OpenMessage()));
  v1::ChatResponse opened;
  ASSERT_TRUE(chat->Read(&opened));
  Collected running;
  std::thread caller([&] { running = Generate(server.inference(), TextRequest("abc", 50)); });
  server.model().gate().AwaitEntered(3);
  server.services().Drain();
  std::thread drain([&] { EXPECT_TRUE(server.engine().Drain(absl::Seconds(20))); });
  // A call that slips in before the drain waits at the gate until its deadline.
  grpc::Status refused;
  do {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
    refused = Generate(server.inference(), TextRequest("abc", 5), context).status;
  } while (refused.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(refused, Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
  server.model().gate().Open();
  v1::ChatResponse none;
  EXPECT_FALSE(chat->Read(&none));
  EXPECT_THAT(chat->Finish(), Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
  caller.join();
  drain.join();
  EXPECT_THAT(running.status, Succeeds());
  EXPECT_EQ(running.tokens.size(), 50u);
}

TEST(Server, ADrainEndsImportsWhoseFilesAreStillComing) {
  TestServer server({.log = {.format = LogFormat::kJson, .level = LogLevel::kDebug}});
  const auto patience = std::chrono::system_clock::now() + std::chrono::seconds(10);
  grpc::ClientContext silent_context, halved_context;
  silent_context.set_deadline(patience);
  halved_context.set_deadline(patience);
  v1::Session made;
  const auto silent = server.sessions().ImportSession(&silent_context, &made);
  const auto halved = server.sessions().ImportSession(&halved_context, &made);
  v1::SessionBytes part;
  part.set_data("OVQ");
  ASSERT_TRUE(halved->Write(part));
  const auto begun = [&server] {
    const std::string log = server.LogText();
    const size_t first = log.find("call began");
    return first != std::string::npos && log.find("call began", first + 1) != std::string::npos;
  };
  while (!begun()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  server.services().Drain();
  EXPECT_THAT(silent->Finish(), Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
  EXPECT_THAT(halved->Finish(), Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
}

// Some of the imports are about to read their next part when the drain begins.
TEST(Server, ADrainEndsImportsWhosePartsComeOneAfterAnother) {
  constexpr int kImports = 8;
  TestServer server;
  std::atomic<int> begun = 0;
  std::vector<std::thread> callers;
  for (int i = 0; i < kImports; ++i) {
    callers.emplace_back([&] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
      v1::Session made;
      const auto import = server.sessions().ImportSession(&context, &made);
      for (int parts = 0; parts < 10; ++parts) import->Write({});
      ++begun;
      while (import->Write({})) {
      }
      EXPECT_THAT(import->Finish(), Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
    });
  }
  while (begun < kImports) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  server.services().Drain();
  for (std::thread& caller : callers) caller.join();
}

TEST(Server, StreamsThatBeginInADrainEndWithoutAMessage) {
  TestServer server;
  server.services().Drain();
  const auto patience = std::chrono::system_clock::now() + std::chrono::seconds(10);
  grpc::ClientContext chat_context;
  chat_context.set_deadline(patience);
  const auto chat = server.inference().Chat(&chat_context);
  v1::ChatResponse none;
  EXPECT_FALSE(chat->Read(&none));
  EXPECT_THAT(chat->Finish(), Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
  grpc::ClientContext import_context;
  import_context.set_deadline(patience);
  v1::Session made;
  const auto import = server.sessions().ImportSession(&import_context, &made);
  EXPECT_THAT(import->Finish(), Fails(grpc::StatusCode::UNAVAILABLE, "draining"));
  EXPECT_THAT(server.metrics().Text(), HasSubstr("reason=\"draining\"} 2\n"));
}

}  // namespace
}  // namespace ovq::server::test
