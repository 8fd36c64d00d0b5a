// Calls of the quick lane answer while other calls wait for the engine or for another server.
#include <unistd.h>

#include <filesystem>
#include <future>

#include "absl/strings/str_cat.h"
#include "ovq/v1/admin.grpc.pb.h"
#include "server/disk/session_folder.h"
#include "tests/server/http/fake_exchange.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

constexpr absl::Duration kLanePatience = absl::Seconds(20);

// A server with a session folder whose engine stands still inside an iteration, so that nothing
// that asks the engine is answered until the test opens the gate.
class QuickLaneTest : public testing::Test {
 protected:
  QuickLaneTest() {
    std::filesystem::remove_all(path_);
    TestServerOptions options;
    options.engine.session_store = disk::SessionFolder::Open({.path = path_}).value();
    EXPECT_TRUE(options.engine.session_store->Recover().ok());
    server_.emplace(std::move(options));
    here_ = server_->NewSession();
    const int64_t held = server_->model().gate().steps() + 1;
    server_->model().gate().CloseAt(held);
    running_ = std::async(std::launch::async,
                          [this] { return Generate(server_->inference(), TextRequest("abc", 5)); });
    server_->model().gate().AwaitEntered(held);
  }
  ~QuickLaneTest() override {
    server_->model().gate().Open();
    EXPECT_THAT(running_.get().status, Succeeds());
    server_.reset();
    std::filesystem::remove_all(path_);
  }

  const std::string path_ = testing::TempDir() + "/quick" + std::to_string(getpid());
  std::optional<TestServer> server_;
  std::string here_;  // a session that this server has
  std::future<Collected> running_;
};

TEST_F(QuickLaneTest, GrpcCallsAnswerWhileSessionsElsewhereAreAskedFor) {
  // Each client has a connection of its own: the lane never gives one client all its threads.
  std::vector<std::future<grpc::Status>> waiting;
  for (int i = 0; i < 4; ++i) {
    waiting.push_back(std::async(std::launch::async, [this] {
      const auto stub = v1::SessionService::NewStub(server_->NewChannel());
      v1::GetSessionRequest request;
      request.set_session_id("0123456789abcdef0123456789abcdef");
      v1::Session session;
      return Call(*stub, &v1::SessionService::Stub::GetSession, request, session);
    }));
  }
  for (const auto& call : waiting) {
    EXPECT_EQ(call.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ModelInfo info;
  EXPECT_THAT(server_->inference().GetModelInfo(&context, v1::GetModelInfoRequest(), &info),
              Succeeds());
  grpc::ClientContext of_session;
  of_session.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::GetSessionRequest request;
  request.set_session_id(here_);
  v1::Session session;
  EXPECT_THAT(server_->sessions().GetSession(&of_session, request, &session), Succeeds());
  server_->model().gate().Open();
  for (auto& call : waiting) {
    EXPECT_THAT(call.get(), Fails(grpc::StatusCode::NOT_FOUND, "0123456789abcdef"));
  }
}

TEST_F(QuickLaneTest, AdminCallsAnswerWhileADeletionWaits) {
  ListenOptions listen;
  listen.address = "127.0.0.1:0";
  const auto admin = GrpcServer::Start(listen, AdminServices(server_->services(), [] {}));
  ASSERT_TRUE(admin.ok()) << admin.status();
  const auto stub = v1::AdminService::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", (*admin)->port()), grpc::InsecureChannelCredentials()));
  auto deleted = std::async(std::launch::async, [&] {
    v1::AdminDeleteSessionRequest request;
    request.set_session_id(here_);
    v1::AdminDeleteSessionResponse response;
    return Call(*stub, &v1::AdminService::Stub::DeleteSession, request, response);
  });
  EXPECT_EQ(deleted.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  v1::ServerStatus status;
  EXPECT_THAT(stub->GetStatus(&context, v1::GetStatusRequest(), &status), Succeeds());
  server_->model().gate().Open();
  EXPECT_THAT(deleted.get(), Succeeds());
}

TEST_F(QuickLaneTest, HttpCallsAnswerWhileSessionsElsewhereAreAskedFor) {
  HttpApi api(server_->services(), {.check_host = true});
  const auto send = [&api](const std::string& path, const std::string& peer) {
    auto exchange = std::make_shared<FakeExchange>("GET", path, "", HttpHeaders(), peer);
    api.Handle(exchange);
    return exchange;
  };
  std::vector<std::shared_ptr<FakeExchange>> waiting;
  for (const char* peer : {"ipv4:10.0.0.1:1", "ipv4:10.0.0.2:1"}) {
    waiting.push_back(send("/ovq/v1/sessions/0123456789abcdef0123456789abcdef", peer));
    waiting.push_back(send("/v1/responses/resp_0123456789abcdef0123456789abcdef", peer));
  }
  for (const auto& call : waiting) EXPECT_FALSE(call->Read(absl::Milliseconds(100)));
  for (const std::string& path :
       {std::string("/ovq/v1/info"), std::string("/v1/models"), "/ovq/v1/sessions/" + here_}) {
    const auto quick = send(path, "ipv4:10.0.0.3:1");
    EXPECT_TRUE(quick->Read(absl::Seconds(10))) << path;
    EXPECT_EQ(quick->reply().status, 200) << path;
  }
  server_->model().gate().Open();
  for (const auto& call : waiting) {
    EXPECT_TRUE(call->Read(kLanePatience));
    EXPECT_EQ(call->reply().status, 404);
  }
}

}  // namespace
}  // namespace ovq::server::test
