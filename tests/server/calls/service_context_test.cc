#include "server/calls/service_context.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
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

}  // namespace
}  // namespace ovq::server::test
