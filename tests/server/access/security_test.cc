// Tokens, tenants, quotas and the admin service over gRPC, in process; files of credentials.
#include "server/access/security.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "ovq/v1/admin.grpc.pb.h"
#include "server/rpc/services.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;
constexpr auto kUnauthenticated = grpc::StatusCode::UNAUTHENTICATED;
constexpr auto kDenied = grpc::StatusCode::PERMISSION_DENIED;
constexpr auto kExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;

const char kAlice[] = "alice-0123456789-abcdef";
const char kBob[] = "bob-0123456789-abcdef";
const char kRoot[] = "root-0123456789-abcdef";

std::string Entry(const std::string& name, const std::string& token, const std::string& more = "") {
  return absl::StrCat(R"({"name":")", name, R"(","token_sha256":[")", *HashToken(token), R"("])",
                      more, "}");
}
std::string Tenants(const std::vector<std::string>& entries) {
  std::string text = R"({"tenants":[)";
  for (const std::string& entry : entries) {
    absl::StrAppend(&text, text.back() == '}' ? "," : "", entry);
  }
  return text + "]}";
}
TenantList Three(const std::string& alice_limits = "") {
  return *TenantList::Parse(Tenants({Entry("alice", kAlice, alice_limits), Entry("bob", kBob),
                                     Entry("root", kRoot, R"(,"admin":true)")}),
                            "t.json");
}
TestServerOptions WithTenants(const std::string& alice_limits = "") {
  TestServerOptions options;
  options.tenants = Three(alice_limits);
  return options;
}

void Authorize(grpc::ClientContext& context, const std::string& token) {
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
}
grpc::Status Create(TestServer& server, const std::string& token, v1::Session* session = nullptr) {
  grpc::ClientContext context;
  Authorize(context, token);
  v1::Session ignored;
  return server.sessions().CreateSession(&context, {}, session ? session : &ignored);
}
grpc::Status Info(TestServer& server,
                  const std::vector<std::pair<std::string, std::string>>& pairs) {
  grpc::ClientContext context;
  for (const auto& [key, value] : pairs) context.AddMetadata(key, value);
  v1::ModelInfo info;
  return server.inference().GetModelInfo(&context, {}, &info);
}

TEST(Tokens, EveryCallNeedsAGoodOne) {
  TestServer server(WithTenants());
  const std::string message = "metadata authorization: expected 'Bearer TOKEN'";
  const grpc::Status missing = Info(server, {});
  EXPECT_THAT(missing, Fails(kUnauthenticated, message));
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  for (const Pairs& pairs :
       {Pairs{{"authorization", "Bearer wrong-token"}}, Pairs{{"authorization", "Basic YWJj"}},
        Pairs{{"authorization", "Bearer "}}, Pairs{{"authorization", "Bearer a b"}},
        Pairs{{"authorization", absl::StrCat("Bearer ", kAlice, "x")}},
        Pairs{{"authorization", std::string("Bearer ") + kAlice},
              {"authorization", std::string("Bearer ") + kBob}},
        Pairs{{"ovq-tenant", "alice"}}}) {
    const grpc::Status status = Info(server, pairs);
    EXPECT_EQ(status.error_code(), kUnauthenticated) << pairs[0].second;
    EXPECT_EQ(status.error_message(), missing.error_message()) << pairs[0].second;
  }
  EXPECT_THAT(Info(server, {{"authorization", std::string("Bearer ") + kAlice}}), Succeeds());
  EXPECT_THAT(Info(server, {{"authorization", std::string("bearer ") + kBob}}), Succeeds());
  const std::string metrics = server.metrics().Text();
  EXPECT_THAT(metrics, HasSubstr("ovq_auth_failures_total{reason=\"missing\"} 2"));
  EXPECT_THAT(metrics, HasSubstr("ovq_auth_failures_total{reason=\"malformed\"} 4"));
  EXPECT_THAT(metrics, HasSubstr("ovq_auth_failures_total{reason=\"unknown\"} 2"));
}

TEST(Tokens, StreamsNeedOneToo) {
  TestServer server(WithTenants());
  EXPECT_THAT(Generate(server.inference(), TextRequest("x", 1)).status,
              Fails(kUnauthenticated, "authorization"));
  grpc::ClientContext chat_context;  // refused before its first message
  const auto chat = server.inference().Chat(&chat_context);
  v1::ChatResponse response;
  EXPECT_FALSE(chat->Read(&response));
  EXPECT_THAT(chat->Finish(), Fails(kUnauthenticated, "authorization"));
  grpc::ClientContext export_context;
  const auto reader = server.sessions().ExportSession(&export_context, {});
  v1::SessionBytes bytes;
  EXPECT_FALSE(reader->Read(&bytes));
  EXPECT_THAT(reader->Finish(), Fails(kUnauthenticated, "authorization"));
  grpc::ClientContext import_context;
  v1::Session session;
  const auto writer = server.sessions().ImportSession(&import_context, &session);
  EXPECT_THAT(writer->Finish(), Fails(kUnauthenticated, "authorization"));
  grpc::ClientContext rewind_context;
  v1::RewindSessionResponse rewound;
  EXPECT_THAT(server.sessions().RewindSession(&rewind_context, {}, &rewound),
              Fails(kUnauthenticated, "authorization"));
  EXPECT_EQ(server.engine().Stats().requests_running, 0);
}

TEST(Tokens, TheTokenIsTheTenant) {
  TestServer server(WithTenants());
  v1::Session session;
  ASSERT_THAT(Create(server, kAlice, &session), Succeeds());
  EXPECT_TRUE(server.engine().sessions().Get(session.session_id(), "alice").ok());
  v1::GetSessionRequest request;
  request.set_session_id(session.session_id());
  grpc::ClientContext context;
  Authorize(context, kBob);
  EXPECT_THAT(server.sessions().GetSession(&context, request, &session),
              Fails(grpc::StatusCode::NOT_FOUND, "not found"));
  const std::string bearer = std::string("Bearer ") + kBob;
  EXPECT_THAT(Info(server, {{"authorization", bearer}, {"ovq-tenant", "bob"}}), Succeeds());
  EXPECT_THAT(Info(server, {{"authorization", bearer}, {"ovq-tenant", "alice"}}),
              Fails(kDenied, "ovq-tenant"));
  EXPECT_THAT(server.metrics().Text(),
              HasSubstr("ovq_auth_failures_total{reason=\"forbidden\"} 1"));
}

TEST(Tokens, AConversationEndsWithItsToken) {
  TestServer server(WithTenants());
  grpc::ClientContext context;
  Authorize(context, kAlice);
  const auto chat = server.inference().Chat(&context);
  v1::ChatResponse opened;
  ASSERT_TRUE(chat->Write(OpenMessage()) && chat->Read(&opened));
  Collected first, second;
  ASSERT_TRUE(chat->Write(TurnMessage("hello", 3)) && ReadTurn(*chat, first));
  server.tenants().Set(*TenantList::Parse(Tenants({Entry("bob", kBob)}), "t.json"));
  chat->Write(TurnMessage("again", 3));
  EXPECT_FALSE(ReadTurn(*chat, second));
  EXPECT_THAT(chat->Finish(), Fails(kUnauthenticated, "authorization"));
  EXPECT_THAT(Info(server, {{"authorization", std::string("Bearer ") + kBob}}), Succeeds());
}

TEST(Tokens, HealthNeedsNone) {
  TestServer server(WithTenants());
  std::string answer;
  EXPECT_THAT(RawCall(server.channel(), "/grpc.health.v1.Health/Check", "", answer), Succeeds());
  EXPECT_EQ(answer, std::string("\x08\x01"));
}

TEST(Quotas, RefusalsNameTheLimitAndTheTime) {
  TestServer few(WithTenants(R"(,"limits":{"sessions":1})"));
  EXPECT_THAT(Create(few, kAlice), Succeeds());
  EXPECT_THAT(Create(few, kAlice),
              Fails(kExhausted, "tenant alice: sessions: 1 more on top of 1, the limit is 1"));
  few.WaitForStats([](const engine::EngineStats& stats) { return stats.sessions_idle == 1; });
  EXPECT_FALSE(few.engine().sessions().Delete("none", "").ok());
  EXPECT_THAT(few.metrics().Text(), HasSubstr("ovq_admission_rejections_total{model=\"fake\","
                                              "reason=\"tenant_sessions\"} 1"));
  TestServer server(WithTenants(R"(,"limits":{"requests_per_second":0.001})"));
  EXPECT_THAT(Create(server, kAlice), Succeeds());
  grpc::ClientContext context;
  Authorize(context, kAlice);
  v1::TokenizeRequest request;
  request.set_text("x");
  v1::TokenizeResponse response;
  const grpc::Status refused = server.inference().Tokenize(&context, request, &response);
  EXPECT_THAT(refused, Fails(kExhausted, "tenant alice: requests_per_second: the limit is 0.001"));
  const auto retry = context.GetServerTrailingMetadata().find("retry-after-ms");
  ASSERT_NE(retry, context.GetServerTrailingMetadata().end());
  const int64_t ms = std::stoll(std::string(retry->second.data(), retry->second.size()));
  EXPECT_GT(ms, 900'000);
  EXPECT_LE(ms, 1'000'000);
  EXPECT_EQ(GetErrorInfo(refused).reason(), "tenant_requests");
  EXPECT_EQ(GetErrorInfo(refused).retry_after().seconds(), ms / 1000);
  EXPECT_THAT(Create(server, kBob), Succeeds());
  server.WaitForStats([](const engine::EngineStats& stats) { return stats.sessions_idle == 2; });
  // Waits for the end of an iteration, when refusals are reported.
  EXPECT_FALSE(server.engine().sessions().Delete("none", "").ok());
  const std::string metrics = server.metrics().Text();
  EXPECT_THAT(metrics, HasSubstr("ovq_admission_rejections_total{model=\"fake\",reason=\"tenant_"
                                 "requests\"} 1"));
  EXPECT_THAT(metrics, testing::Not(HasSubstr("alice")));
  EXPECT_THAT(server.LogText(), HasSubstr(R"("reason":"tenant_requests","tenant":"alice",)"));
}

class Admin : public testing::Test {
 protected:
  void Serve(TestServer& server) {
    ListenOptions options;
    options.address = "127.0.0.1:0";
    options.flag = "--admin-listen";
    auto admin =
        GrpcServer::Start(options, AdminServices(server.services(), [this] { ++drains_; }));
    ASSERT_TRUE(admin.ok()) << admin.status();
    admin_ = *std::move(admin);
    stub_ = v1::AdminService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1:", admin_->port()), grpc::InsecureChannelCredentials()));
  }
  template <class Request, class Response>
  grpc::Status Call(grpc::Status (v1::AdminService::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                    const Request& request, Response& response, const std::string& token = kRoot) {
    grpc::ClientContext context;
    Authorize(context, token);
    return (*stub_.*method)(&context, request, &response);
  }

  using Stub = v1::AdminService::Stub;
  std::atomic<int> drains_{0};
  std::unique_ptr<GrpcServer> admin_;
  std::unique_ptr<v1::AdminService::Stub> stub_;
};

TEST_F(Admin, NeedsAnAdminsToken) {
  TestServer server(WithTenants());
  Serve(server);
  v1::ServerStatus status;
  EXPECT_THAT(Call(&Stub::GetStatus, v1::GetStatusRequest(), status), Succeeds());
  EXPECT_THAT(Call(&Stub::GetStatus, v1::GetStatusRequest(), status, kBob),
              Fails(kDenied, "\"admin\": true"));
  EXPECT_THAT(Call(&Stub::GetStatus, v1::GetStatusRequest(), status, ""),
              Fails(kUnauthenticated, "authorization"));
  v1::DrainResponse drained;
  EXPECT_THAT(Call(&Stub::Drain, v1::DrainRequest(), drained, kAlice), Fails(kDenied, "admin"));
  EXPECT_EQ(drains_, 0);
  EXPECT_THAT(Call(&Stub::Drain, v1::DrainRequest(), drained), Succeeds());
  EXPECT_EQ(drains_, 1);
  std::string answer;  // the clients' address has no admin service
  EXPECT_EQ(RawCall(server.channel(), "/ovq.v1.AdminService/GetStatus", "", answer).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(Admin, SeesAndDeletesAllTenantsSessions) {
  TestServer server(WithTenants());
  Serve(server);
  v1::Session alice, bob;
  ASSERT_THAT(Create(server, kAlice, &alice), Succeeds());
  ASSERT_THAT(Create(server, kBob, &bob), Succeeds());
  v1::AdminListSessionsRequest request;
  request.set_page_size(1);
  std::map<std::string, std::string> tenant_of;
  for (int page = 0; page < 2; ++page) {
    v1::AdminListSessionsResponse response;
    ASSERT_THAT(Call(&Stub::ListSessions, request, response), Succeeds());
    ASSERT_EQ(response.sessions_size(), 1);
    tenant_of[response.sessions(0).session().session_id()] = response.sessions(0).tenant();
    request.set_page_token(response.next_page_token());
  }
  EXPECT_EQ(request.page_token(), "");
  EXPECT_EQ(tenant_of, (std::map<std::string, std::string>{{alice.session_id(), "alice"},
                                                           {bob.session_id(), "bob"}}));
  v1::AdminDeleteSessionRequest target;
  v1::AdminDeleteSessionResponse deleted;
  EXPECT_THAT(Call(&Stub::DeleteSession, target, deleted),
              Fails(grpc::StatusCode::INVALID_ARGUMENT, "session_id: "));
  target.set_session_id(bob.session_id());
  EXPECT_THAT(Call(&Stub::DeleteSession, target, deleted), Succeeds());
  EXPECT_THAT(Call(&Stub::DeleteSession, target, deleted),
              Fails(grpc::StatusCode::NOT_FOUND, bob.session_id()));
}

TEST_F(Admin, StatusTellsUseAgainstLimits) {
  TestServer server(WithTenants(R"(,"limits":{"sessions":4,"state_bytes":"1G"})"));
  Serve(server);
  v1::Session session;
  ASSERT_THAT(Create(server, kAlice, &session), Succeeds());
  server.WaitForStats([](const engine::EngineStats& stats) { return stats.sessions_idle == 1; });
  v1::ServerStatus status;
  ASSERT_THAT(Call(&Stub::GetStatus, v1::GetStatusRequest(), status), Succeeds());
  EXPECT_EQ(status.model(), "fake");
  EXPECT_FALSE(status.draining());
  EXPECT_EQ(status.sessions_idle(), 1u);
  ASSERT_EQ(status.tenants_size(), 1);
  EXPECT_EQ(status.tenants(0).name(), "alice");
  EXPECT_EQ(status.tenants(0).sessions(), 1u);
  EXPECT_EQ(status.tenants(0).sessions_limit(), 4u);
  EXPECT_EQ(status.tenants(0).state_bytes(), session.state_bytes_cap());
  EXPECT_EQ(status.tenants(0).state_bytes_limit(), 1u << 30);
  EXPECT_FALSE(status.tenants(0).has_tokens_per_second_limit());
}

TEST(TenantFile, ReadsWhatItSays) {
  const TenantList list =
      Three(R"(,"limits":{"sessions":10,"state_bytes":1073741824,"requests_per_second":2.5,)"
            R"("tokens_per_second":1000},"weight":2.5)");
  const engine::TenantLimits limits = list.Limits().at("alice");
  EXPECT_EQ(limits.sessions, 10);
  EXPECT_EQ(limits.state_bytes, size_t{1} << 30);
  EXPECT_EQ(limits.requests_per_second, 2.5);
  EXPECT_EQ(limits.tokens_per_second, 1000);
  EXPECT_EQ(limits.weight, 2.5);
  EXPECT_EQ(list.Limits().at("bob"), engine::TenantLimits{});
  EXPECT_TRUE(list.Find(DigestToken(kRoot))->admin);
  EXPECT_EQ(list.Find(DigestToken("alice")), nullptr);
}

TEST(TenantFile, FaultsNameTheirPlace) {
  const std::string alice = Entry("alice", kAlice);
  const auto with = [](const std::string& more) { return Tenants({Entry("alice", kAlice, more)}); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", "t.json: not valid JSON"},
      {with(R"(,"weight":1e999)"),
       "t.json: not valid JSON: a number is beyond the range of doubles"},
      {"{}", "t.json: tenants: expected an array"},
      {R"({"tenants":[]})", "t.json: tenants: expected an array of at least one"},
      {R"({"tenants":[],"x":1})", "'x': unknown field"},
      {R"({"tenants":[7]})", "t.json: tenants[0]: expected an object"},
      {R"({"tenants":[{"token_sha256":[]}]})", "t.json: tenants[0]: name: expected a text"},
      {R"({"tenants":[{"name":"a b"}]})", "t.json: tenants[0]: name: expected 1 to 64"},
      {R"({"tenants":[{"name":"a"}]})", "t.json: tenant a: token_sha256: expected an array"},
      {R"({"tenants":[{"name":"a","token_sha256":[]}]})", "tenant a: token_sha256: expected"},
      {R"({"tenants":[{"name":"a","token_sha256":["zz"]}]})",
       "t.json: tenant a: token_sha256[0]: expected 64 hex digits"},
      {Tenants({alice, Entry("alice", kBob)}), "t.json: tenant alice: name: used twice"},
      {Tenants({alice, Entry("bob", kAlice)}), "t.json: tenant bob: token_sha256[0]: used twice"},
      {with(R"(,"admin":1)"), "t.json: tenant alice: admin: expected true or false"},
      {with(R"(,"weight":0)"), "tenant alice: weight: expected a number from 0.01 to 100"},
      {with(R"(,"weight":"1")"), "tenant alice: weight: expected a number"},
      {with(R"(,"limit":{})"), "tenant alice: 'limit': unknown field"},
      {with(R"(,"limits":[])"), "tenant alice: limits: expected an object"},
      {with(R"(,"limits":{"x":1})"), "tenant alice: limits: 'x': unknown field"},
      {with(R"(,"limits":{"sessions":0})"), "limits: 'sessions': expected a whole number"},
      {with(R"(,"limits":{"sessions":1.5})"), "limits: 'sessions': expected a whole number"},
      {with(R"(,"limits":{"sessions":-1})"), "limits: 'sessions': expected a whole number"},
      {with(R"(,"limits":{"state_bytes":"1X"})"), "limits: 'state_bytes': "},
      {with(R"(,"limits":{"requests_per_second":0})"), "limits: 'requests_per_second': expected"},
      {with(R"(,"limits":{"tokens_per_second":"9"})"), "limits: 'tokens_per_second': expected"},
      {with(R"(,"name":"again")"), "duplicate key"},
  };
  for (const auto& [text, message] : cases) {
    const absl::StatusOr<TenantList> list = TenantList::Parse(text, "t.json");
    ASSERT_FALSE(list.ok()) << text;
    EXPECT_TRUE(absl::IsInvalidArgument(list.status())) << list.status();
    EXPECT_THAT(std::string(list.status().message()), HasSubstr(message)) << text;
  }
}

TEST(TenantFile, HashToken) {
  // echo -n abcdefghijklmnopqrstuvwxyz | sha256sum
  EXPECT_EQ(*HashToken("abcdefghijklmnopqrstuvwxyz\r\n"),
            "71c480df93d6ae2f1efad1447c66c9525e316218cf51fc8d9ed832f2daf18b73");
  for (const char* bad :
       {"", "\n", "tooshort", "with a space in between it", "two\nlines-of-text-x"}) {
    EXPECT_FALSE(HashToken(bad).ok()) << bad;
  }
}

TEST(FileSet, ChangesAreToldOnceTheyHaveSettled) {
  const std::string path = testing::TempDir() + "/file_set_test";
  std::ofstream(path) << "one";
  FileSet files({path, ""});
  EXPECT_FALSE(files.Changed());
  std::ofstream(path) << "longer";
  EXPECT_FALSE(files.Changed());  // seen, not yet settled
  EXPECT_TRUE(files.Changed());
  EXPECT_FALSE(files.Changed());
  std::remove(path.c_str());
  EXPECT_FALSE(files.Changed());
  EXPECT_TRUE(files.Changed());
}

}  // namespace
}  // namespace ovq::server::test
