// GET /metrics over sockets: what a scraper gets, plain and compressed.
#include "server/http/metrics_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

// asio.hpp of Boost 1.74 uses std::exchange without its header.
// clang-format off
#include <utility>
#include <boost/asio.hpp>
// clang-format on
#include <string>

#include "absl/strings/str_cat.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Sends one request on a connection of its own and gives all that comes back.
std::string Fetch(int port, const std::string& request) {
  namespace asio = boost::asio;
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  socket.connect({asio::ip::make_address("127.0.0.1"), static_cast<uint16_t>(port)});
  asio::write(socket, asio::buffer(request));
  std::string all;
  boost::system::error_code end;
  asio::read(socket, asio::dynamic_buffer(all), end);
  return all;
}

class MetricsEndpointTest : public testing::Test {
 protected:
  MetricsEndpointTest() : metrics_(ModelDescription()) {
    auto endpoint = ServeMetrics("127.0.0.1:0", metrics_);
    EXPECT_TRUE(endpoint.ok()) << endpoint.status();
    endpoint_ = *std::move(endpoint);
  }
  std::string Get(const std::string& target, const std::string& method = "GET",
                  const std::string& headers = "") {
    return Fetch(endpoint_->port(), absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: x\r\n",
                                                 headers, "Connection: close\r\n\r\n"));
  }

  Metrics metrics_;
  std::unique_ptr<HttpServer> endpoint_;
};

TEST_F(MetricsEndpointTest, ServesThePageAndCountsItself) {
  const std::string first = Get("/metrics");
  EXPECT_THAT(first, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(first, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(first, HasSubstr("\novq_ready{"));
  EXPECT_THAT(first, HasSubstr("\nexposer_scrapes_total 0\n"));
  const std::string second = Get("/metrics?any=1");
  EXPECT_THAT(second, HasSubstr("\nexposer_scrapes_total 1\n"));
  EXPECT_THAT(second, HasSubstr("\nexposer_request_latencies_count 1\n"));
  EXPECT_THAT(second, Not(HasSubstr("\nexposer_transferred_bytes_total 0\n")));
}

TEST_F(MetricsEndpointTest, ServesNothingElse) {
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/metrics/more"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Get("/metrics", "DELETE"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(Get("/metrics", "HEAD"), Not(HasSubstr("ovq_ready")));
  EXPECT_THAT(Get("/metrics", "GET", absl::StrCat("X: ", std::string(20'000, 'x'), "\r\n")),
              StartsWith("HTTP/1.1 400 "));
}

TEST_F(MetricsEndpointTest, CompressesForThoseWhoAccept) {
  const std::string plain = Get("/metrics");
  const std::string packed = Get("/metrics", "GET", "Accept-Encoding: gzip\r\n");
  EXPECT_THAT(packed, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_THAT(packed, HasSubstr("\r\n\r\n\x1f\x8b\x08"));
  EXPECT_LT(packed.size(), plain.size() / 4);
  for (const auto& [codings, accepts] :
       {std::pair("br, GZIP ; q=0.5", true), std::pair("identity, gzip;q=0", false),
        std::pair("gzip;q=0.000, *", false)}) {
    const std::string page =
        Get("/metrics", "GET", absl::StrCat("Accept-Encoding: ", codings, "\r\n"));
    EXPECT_EQ(page.find("Content-Encoding: gzip\r\n") != std::string::npos, accepts) << codings;
  }
}

TEST_F(MetricsEndpointTest, ATakenPortNamesTheFlag) {
  const std::string address = absl::StrCat("127.0.0.1:", endpoint_->port());
  const auto second = ServeMetrics(address, metrics_);
  EXPECT_TRUE(absl::IsUnavailable(second.status()));
  EXPECT_EQ(second.status().message(),
            "--metrics-address: cannot listen on " + address + ": Address already in use");
}

// By RFC 1952: the trailer holds the CRC-32 and the length; 0xCBF43926 is the check value of
// CRC-32.
TEST(Gzip, EndsWithChecksumAndLength) {
  const std::string packed = Gzip("123456789");
  EXPECT_EQ(packed.substr(0, 4), std::string("\x1f\x8b\x08\0", 4));
  EXPECT_EQ(packed.substr(packed.size() - 8), std::string("\x26\x39\xf4\xcb\x09\0\0\0", 8));
  EXPECT_EQ(Gzip("").substr(Gzip("").size() - 8), std::string(8, '\0'));
}

}  // namespace
}  // namespace ovq::server::test
