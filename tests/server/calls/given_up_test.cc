// Calls whose clients have gone do not wait for their turn to be parsed: they hold connections and
// memory.
#include <boost/asio.hpp>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/apis/http_api.h"
#include "tests/server/http/fake_exchange.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

using Tcp = boost::asio::ip::tcp;

// A server on which a large message of a client is being parsed until the test ends, so that its
// next ones wait.
class GivenUpTest : public testing::Test {
 protected:
  static constexpr size_t kLarge = WorkQueue::kLargeMessage + 1;

  ~GivenUpTest() override { parsed_.set_value(); }

  void ParseForLong(const std::string& client) {
    server_.services().blocking.Begin(client, kLarge, [this, gate = parsed_.get_future().share()] {
      parsing_.set_value();
      gate.wait();
    });
    parsing_.get_future().wait();
  }
  bool CallsAreCounted(const std::string& metric) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (server_.metrics().Text().find(metric) == std::string::npos) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }

  TestServer server_;
  std::promise<void> parsing_, parsed_;
};

TEST_F(GivenUpTest, OverHttp) {
  ParseForLong("ipv4:127.0.0.1");
  HttpApi api(server_.services(), {.check_host = true});
  std::vector<std::shared_ptr<FakeExchange>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(
        std::make_shared<FakeExchange>("POST", "/v1/completions", std::string(kLarge, 'x')));
    api.Handle(calls.back());
  }
  EXPECT_FALSE(calls[1]->Read(absl::Milliseconds(50)));
  calls[1]->Leave();
  EXPECT_TRUE(calls[1]->Read(absl::Seconds(20)));
  for (const int i : {0, 2}) {
    EXPECT_FALSE(calls[i]->Read(absl::Milliseconds(20)));
    calls[i]->Leave();
    EXPECT_TRUE(calls[i]->Read(absl::Seconds(20)));
  }
  EXPECT_TRUE(CallsAreCounted("route=\"/v1/completions\",status=\"499\"} 3\n"));
}

TEST_F(GivenUpTest, OverGrpc) {
  ASSERT_FALSE(server_.NewSession().empty());
  const std::string log = server_.LogText(), peer = "\"peer\":\"";
  const size_t begin = log.rfind(peer) + peer.size();
  ParseForLong(log.substr(begin, log.find('"', begin) - begin));  // a connection is a client
  const std::string text(kLarge, 'x');
  grpc::ClientContext of_unary, of_stream, of_export;
  v1::TokenizeRequest unary;
  unary.set_text(text);
  v1::GenerateRequest stream;
  stream.mutable_prompt()->set_text(text);
  v1::ExportSessionRequest exported;
  exported.set_session_id(text);
  auto tokenize = std::async(std::launch::async, [&] {
    v1::TokenizeResponse answer;
    return server_.inference().Tokenize(&of_unary, unary, &answer);
  });
  const auto generate = server_.inference().Generate(&of_stream, stream);
  const auto image = server_.sessions().ExportSession(&of_export, exported);
  // They arrive: what waits to be parsed takes its bytes.
  server_.WaitForStats(
      [](const engine::EngineStats& stats) { return stats.request_bytes > 3 * kLarge; });
  for (grpc::ClientContext* context : {&of_unary, &of_stream, &of_export}) context->TryCancel();
  for (const char* method : {"Tokenize", "Generate", "ExportSession"}) {
    EXPECT_TRUE(CallsAreCounted(absl::StrCat("code=\"CANCELLED\",method=\"", method, "\"} 1\n")))
        << method;
  }
  EXPECT_EQ(tokenize.get().error_code(), grpc::StatusCode::CANCELLED);
  generate->Finish();
  image->Finish();
}

// Each of their connections would count until its turn came, and newcomers would be refused.
TEST_F(GivenUpTest, ConnectionsMakeRoom) {
  ParseForLong("ipv4:127.0.0.1");
  HttpApi api(server_.services(), {.check_host = true});
  ASSERT_TRUE(api.Listen({.address = "127.0.0.1:0", .max_connections = 4}).ok());
  const Tcp::endpoint address(boost::asio::ip::make_address("127.0.0.1"),
                              static_cast<uint16_t>(api.server().port()));
  boost::asio::io_context io;
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 40; ++i) {
    Tcp::socket gone(io);
    gone.connect(address);
    boost::asio::write(gone, boost::asio::buffer(absl::StrCat(
                                 head, "Content-Type: application/json\r\nContent-Length: ", kLarge,
                                 "\r\n\r\n", std::string(kLarge, 'x'))));
    gone.shutdown(Tcp::socket::shutdown_send);
    char ignored = 0;
    boost::system::error_code end;
    gone.read_some(boost::asio::buffer(&ignored, 1), end);  // the server closes or answers it
  }
  Tcp::socket newcomer(io);
  newcomer.open(Tcp::v4());
  newcomer.bind({boost::asio::ip::make_address("127.0.0.2"), 0});
  newcomer.connect(address);
  boost::asio::write(newcomer, boost::asio::buffer(
                                   std::string("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")));
  std::string got;
  boost::asio::read_until(newcomer, boost::asio::dynamic_buffer(got), "\r\n");
  EXPECT_THAT(got, testing::StartsWith("HTTP/1.1 200 OK\r\n"));
}

}  // namespace
}  // namespace ovq::server::test
