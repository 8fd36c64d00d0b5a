// Requests over sockets: what the server holds while a client does not read its answer.
#include "server/http/http_server.h"

#include <gtest/gtest.h>

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <future>
#include <memory>
#include <string>

#include "absl/time/clock.h"

namespace ovq::server::test {
namespace {

TEST(HttpServer, AnAnswerThatIsNotReadHoldsNoSourceButADrain) {
  std::promise<std::weak_ptr<int>> begun;
  const auto handle = [&begun](std::shared_ptr<Exchange> exchange) {
    const auto mark = std::make_shared<int>();
    begun.set_value(mark);
    exchange->Stream({}, [mark](std::string& out) {
      out.assign(size_t{64} << 20, 'x');  // more than the sockets hold
      return false;
    });
  };
  const HttpOptions options = {.address = "127.0.0.1:0",
                               .memory = std::make_shared<ByteBudget>(size_t{1} << 20)};
  const auto server = HttpServer::Start(options, {}, handle);
  ASSERT_TRUE(server.ok()) << server.status();
  namespace asio = boost::asio;
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>((*server)->port())});
  asio::write(socket, asio::buffer(std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n")));
  const std::weak_ptr<int> mark = begun.get_future().get();
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (!mark.expired() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(mark.expired());

  const absl::Time soon = absl::Now() + absl::Milliseconds(50);
  EXPECT_FALSE((*server)->AwaitAnswers(soon));
  EXPECT_GE(absl::Now(), soon) << "the answer is not sent yet";
  socket.close();
  EXPECT_TRUE((*server)->AwaitAnswers(end));
  EXPECT_LT(absl::Now(), end);
}

// Waits until the server has a request whose answer is not sent.
void AwaitRequest(HttpServer& server) {
  absl::Time soon;
  do {
    soon = absl::Now() + absl::Milliseconds(5);
    server.AwaitAnswers(soon);
  } while (absl::Now() < soon);
}

TEST(HttpServer, ABodyThatDoesNotComeHoldsADrainForAMoment) {
  const HttpOptions options = {.address = "127.0.0.1:0",
                               .ending_progress_timeout = absl::Milliseconds(50),
                               .memory = std::make_shared<ByteBudget>(size_t{1} << 20)};
  const auto server = HttpServer::Start(options, {}, [](const std::shared_ptr<Exchange>&) {
    ADD_FAILURE() << "the request is not all there";
  });
  ASSERT_TRUE(server.ok()) << server.status();
  namespace asio = boost::asio;
  asio::io_context io;
  asio::ip::tcp::socket before(io), meanwhile(io);
  const auto begin = [&server](asio::ip::tcp::socket& socket) {
    socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>((*server)->port())});
    asio::write(socket, asio::buffer(std::string(
                            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{\"pro")));
  };
  begin(before);
  AwaitRequest(**server);
  const absl::Time end = absl::Now() + absl::Seconds(10);
  (*server)->EndConnections();
  (*server)->AwaitAnswers(end);
  EXPECT_LT(absl::Now(), end);
  // Likewise for a connection that is accepted while the server ends.
  begin(meanwhile);
  AwaitRequest(**server);
  (*server)->AwaitAnswers(end);
  EXPECT_LT(absl::Now(), end);
}

}  // namespace
}  // namespace ovq::server::test
