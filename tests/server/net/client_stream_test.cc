// Streams to servers that are slow, silent or gone.
#include "server/net/client_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace ovq::server {
namespace {

using testing::HasSubstr;

// A listening socket, and the other end of a stream to it.
class ClientStreamTest : public testing::Test {
 protected:
  ClientStreamTest() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    peer_ = {.host = "127.0.0.1", .port = ntohs(address.sin_port)};
  }
  ~ClientStreamTest() override { CloseAll(); }

  std::unique_ptr<ClientStream> Open() {
    auto stream = ClientStream::Open(peer_, absl::Seconds(20));
    EXPECT_TRUE(stream.ok()) << stream.status();
    other_ = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    return stream.ok() ? *std::move(stream) : nullptr;
  }
  void CloseAll() {
    for (int* fd : {&other_, &listener_}) {
      if (*fd >= 0) close(*fd);
      *fd = -1;
    }
  }
  // Waits until what the other end did has arrived.
  static void AwaitNotIdle(const ClientStream& stream) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (stream.idle() && std::chrono::steady_clock::now() < end) usleep(1000);
    EXPECT_FALSE(stream.idle());
  }

  int listener_ = -1, other_ = -1;
  PeerAddress peer_;
};

TEST_F(ClientStreamTest, CarriesBytesBothWays) {
  const auto stream = Open();
  ASSERT_NE(stream, nullptr);
  EXPECT_TRUE(stream->idle());
  EXPECT_TRUE(stream->Write({"one ", "", "two"}, absl::Seconds(20)).ok());
  char got[7] = {};
  ASSERT_EQ(recv(other_, got, sizeof(got), MSG_WAITALL), 7);
  EXPECT_EQ(std::string(got, sizeof(got)), "one two");
  ASSERT_EQ(send(other_, "answer", 6, 0), 6);
  AwaitNotIdle(*stream);
  EXPECT_EQ(stream->ReadSome(got, 4, absl::Seconds(20)).value(), 4u);
  EXPECT_EQ(std::string(got, 4), "answ");
  EXPECT_EQ(stream->ReadSome(got, 4, absl::Seconds(20)).value(), 2u);
  EXPECT_TRUE(stream->idle());
}

TEST_F(ClientStreamTest, TheEndOfAStreamIsNoError) {
  const auto stream = Open();
  ASSERT_NE(stream, nullptr);
  ASSERT_EQ(send(other_, "x", 1, 0), 1);
  CloseAll();
  char got[4] = {};
  EXPECT_EQ(stream->ReadSome(got, sizeof(got), absl::Seconds(20)).value(), 1u);
  EXPECT_EQ(stream->ReadSome(got, sizeof(got), absl::Seconds(20)).value(), 0u);
  EXPECT_FALSE(stream->idle());
}

TEST_F(ClientStreamTest, SilenceEndsInTime) {
  const auto stream = Open();
  ASSERT_NE(stream, nullptr);
  char got[4] = {};
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = stream->ReadSome(got, sizeof(got), absl::Milliseconds(200)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.message(), HasSubstr("no answer within 200ms"));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(190));
}

// Nobody reads, so the buffers of both sides fill.
TEST_F(ClientStreamTest, AWriteThatNobodyReadsEndsInTime) {
  const auto stream = Open();
  ASSERT_NE(stream, nullptr);
  const std::string part(size_t{1} << 19, 'x');
  absl::Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) {
    status = stream->Write({part}, absl::Milliseconds(100));
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("no answer within 100ms"));
}

// A server that takes the connection and never greets.
TEST_F(ClientStreamTest, AHandshakeEndsInTime) {
  peer_.tls = TlsTrust();
  const absl::Status status = ClientStream::Open(peer_, absl::Milliseconds(200)).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(status.message(), HasSubstr("no answer within 200ms"));
}

TEST_F(ClientStreamTest, NamesWhatIsMissing) {
  CloseAll();
  EXPECT_THAT(ClientStream::Open(peer_, absl::Seconds(20)).status().message(),
              HasSubstr("Connection refused"));
  peer_.tls = TlsTrust{.ca = "/no/such.pem"};
  EXPECT_THAT(ClientStream::Open(peer_, absl::Seconds(20)).status().message(),
              HasSubstr("/no/such.pem: "));
}

TEST(HostPort, BracketsAddressesOfVersion6) {
  EXPECT_EQ(HostPort("cache", 6379), "cache:6379");
  EXPECT_EQ(HostPort("::1", 80), "[::1]:80");
}

}  // namespace
}  // namespace ovq::server
