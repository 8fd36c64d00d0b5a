// A client's connection to servers whose answers are not the usual ones.
#include "server/http_client/client_connection.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ovq::server {
namespace {

// Answers one request after another with these bytes, each on a connection of its own if `close`.
class ScriptedServer {
 public:
  ScriptedServer(std::vector<std::string> answers, bool close) : answers_(std::move(answers)) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_, any, size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, any, &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, close] { Serve(close); });
  }
  ~ScriptedServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  HttpOrigin origin() const { return {.host = "127.0.0.1", .port = port_}; }

 private:
  void Serve(bool close) {
    size_t next = 0;
    while (next < answers_.size()) {
      const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) return;
      std::string request;
      char byte = 0;
      while (next < answers_.size() && recv(client, &byte, 1, 0) == 1) {
        request += byte;
        if (!request.ends_with("\r\n\r\n")) continue;
        request.clear();
        const std::string& answer = answers_[next++];
        EXPECT_EQ(send(client, answer.data(), answer.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(answer.size()));
        if (close) break;
      }
      if (!close) {
        while (recv(client, &byte, 1, 0) == 1) {
        }
      }
      ::close(client);
    }
  }

  const std::vector<std::string> answers_;
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

ClientResponse Get(ClientConnection& connection) {
  const auto response =
      connection.Exchange({.method = "GET", .target = "/"}, absl::Seconds(20), 100);
  EXPECT_TRUE(response.ok()) << response.status();
  return response.ok() ? *response : ClientResponse();
}

TEST(ClientConnection, AnswersThatAreStillToComeAreWaitedFor) {
  ScriptedServer server(
      {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
       "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst",
       "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond"},
      /*close=*/false);
  ClientConnection connection(server.origin());
  const ClientResponse first = Get(connection);
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.body, "first");
  EXPECT_FALSE(first.headers.contains("link"));
  EXPECT_TRUE(connection.connected());
  EXPECT_EQ(Get(connection).body, "second");
}

// Bytes that no request asked for, or those of an answer that is too long, are not the next one.
TEST(ClientConnection, SurplusBytesAreNoAnswer) {
  ScriptedServer server({"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst"
                         "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
                         "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond"},
                        /*close=*/true);
  ClientConnection connection(server.origin());
  EXPECT_EQ(Get(connection).body, "first");
  EXPECT_FALSE(connection.connected());
  EXPECT_EQ(Get(connection).body, "second");
}

TEST(ClientConnection, SaysWhetherABodyHadASize) {
  ScriptedServer server({"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nsize",
                         "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nto the end",
                         "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\nbroken off",
                         "HTTP/1.1 204 No Content\r\n\r\n"},
                        /*close=*/true);
  ClientConnection connection(server.origin());
  const ClientResponse sized = Get(connection), unsized = Get(connection), broken = Get(connection),
                       empty = Get(connection);
  EXPECT_TRUE(sized.sized && sized.whole);
  EXPECT_FALSE(unsized.sized);
  EXPECT_EQ(unsized.body, "to the end");
  EXPECT_TRUE(broken.sized);
  EXPECT_FALSE(broken.whole);
  EXPECT_TRUE(empty.sized && empty.whole);
}

}  // namespace
}  // namespace ovq::server
