#include "server/calls/service_context.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "server/http/http_call.h"
#include "tests/server/http/fake_exchange.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

// A call's answer may be read while a thread of the server still holds the call.
TEST(ServiceContext, WaitsForCallsThatAreStillHeld) {
  std::optional<TestServer> server(std::in_place);
  auto call = std::make_shared<HttpCall>(server->services(), "GET /v1/models",
                                         std::make_shared<FakeExchange>("GET", "/v1/models"),
                                         HttpHeaders());
  std::atomic<bool> released = false;
  std::thread holder([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    released = true;
    call.reset();
  });
  server.reset();
  EXPECT_TRUE(released);
  holder.join();
}

// A client that has its answer may ask again at once, while a thread still holds the call.
TEST(ServiceContext, ACallWithAnAnswerHoldsTheMemoryOfThatAlone) {
  TestServer server;
  const auto budget = server.services().engine.options().request_memory;
  auto exchange = std::make_shared<FakeExchange>("GET", "/v1/models", std::string(1000, 'x'));
  auto call =
      std::make_shared<HttpCall>(server.services(), "GET /v1/models", exchange, HttpHeaders());
  ASSERT_TRUE(ReserveBytes(call->record().memory(), 1000).ok());
  EXPECT_EQ(budget->held(), 1000u);
  call->Reply(200, "answer");
  EXPECT_EQ(budget->held(), 6u);
  EXPECT_LT(exchange->request().body.capacity(), 100u) << "nobody counts the request any more";
  call.reset();
  EXPECT_EQ(budget->held(), 6u) << "the answer is not sent yet";
  exchange.reset();
  EXPECT_EQ(budget->held(), 0u);

  exchange = std::make_shared<FakeExchange>("GET", "/v1/models");
  call = std::make_shared<HttpCall>(server.services(), "GET /v1/models", exchange, HttpHeaders());
  ASSERT_TRUE(ReserveBytes(call->record().memory(), 1000).ok());
  call->Stream([](std::string& out, absl::Status&) {
    out = "last";
    return false;
  });
  EXPECT_EQ(budget->held(), 1000u);
  EXPECT_TRUE(exchange->Read(absl::Seconds(1)));
  EXPECT_EQ(budget->held(), 4u);
}

}  // namespace
}  // namespace ovq::server::test
