// A Redis that is reached over TLS and asks for certificates of its clients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "server/redis/redis_connection.h"
#include "server/redis/redis_store.h"
#include "tests/server/redis/redis_store_fixture.h"
#include "tests/server/store/free_port.h"

namespace ovq::redis::test {
namespace {

using store::test::FreePort;
using store::test::RedisProcess;
using testing::HasSubstr;

class RedisTls : public testing::Test {
 protected:
  void SetUp() override {
    if (access(store::test::kRedisServer, X_OK) != 0) {
      GTEST_SKIP() << "no " << store::test::kRedisServer;
    }
    folder_ = absl::StrCat(testing::TempDir(), "/redis_tls", getpid());
    std::filesystem::create_directories(folder_);
    for (const char* authority : {"ca", "other"}) MakeAuthority(authority);
    MakeCertificate("server", "subjectAltName=IP:127.0.0.1");
    MakeCertificate("client", "subjectAltName=DNS:client");
    port_ = FreePort();
    redis_ = std::make_unique<RedisProcess>(std::vector<std::string>{
        "--tls-port", absl::StrCat(port_), "--tls-cert-file", File("server.pem"), "--tls-key-file",
        File("server.key"), "--tls-ca-cert-file", File("ca.pem")});
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string File(const std::string& name) const { return folder_ + "/" + name; }
  void OpenSsl(const std::string& arguments) const {
    const std::string command =
        absl::StrCat("cd ", folder_, " && openssl ", arguments, " >/dev/null 2>&1");
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  void MakeAuthority(const std::string& name) const {
    OpenSsl(absl::StrCat("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes ",
                         "-days 2 -subj /CN=", name, " -keyout ", name, ".key -out ", name,
                         ".pem"));
  }
  void MakeCertificate(const std::string& name, const std::string& extension) const {
    ASSERT_TRUE(WriteFile(File(name + ".ext"), extension).ok());
    OpenSsl(absl::StrCat("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=",
                         name, " -keyout ", name, ".key -out ", name, ".csr"));
    OpenSsl(absl::StrCat("x509 -req -in ", name, ".csr -CA ca.pem -CAkey ca.key -CAcreateserial ",
                         "-days 2 -extfile ", name, ".ext -out ", name, ".pem"));
  }
  RedisAddress Address() const {
    return {.host = "127.0.0.1",
            .port = port_,
            .tls = server::TlsTrust{
                .ca = File("ca.pem"), .cert = File("client.pem"), .key = File("client.key")}};
  }
  static std::string Refusal(const RedisAddress& address,
                             absl::Duration timeout = absl::Seconds(20)) {
    RedisConnection connection(address, timeout);
    const absl::Status status = connection.RunTogether({{"PING"}})[0].status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(address.Text()));
    return std::string(status.message());
  }

  std::string folder_;
  int port_ = 0;
  std::unique_ptr<RedisProcess> redis_;
};

// Values of several TLS records, with all bytes, and replies that come together.
TEST_F(RedisTls, CarriesWhatAPlainConnectionDoes) {
  RedisConnection connection(Address(), absl::Seconds(20));
  std::string value;
  for (size_t i = 0; i < (size_t{8} << 20) + 13; ++i) value += static_cast<char>(i * i % 251);
  const Replies replies = connection.RunTogether(
      {{"SET", "large", value}, {"GET", "large"}, {"NOSUCHCOMMAND"}, {"GET", "absent"}});
  ASSERT_EQ(replies.size(), 4u);
  ASSERT_TRUE(replies[1].ok()) << replies[1].status();
  EXPECT_EQ(replies[1]->text, value);
  EXPECT_TRUE(absl::IsInternal(replies[2].status()));
  EXPECT_TRUE(replies[3]->null);
  EXPECT_EQ(redis_->Run({"GET", "large"}).text, value);
}

TEST_F(RedisTls, AStoreKeepsSessionsThere) {
  const auto store = RedisStore::Open({.address = Address()}, {});
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Recover().ok());
  const absl::Status created =
      Await<absl::Status>([&](auto done) { (*store)->Create(HeadNamed(kSession), {}, {}, done); });
  EXPECT_TRUE(created.ok()) << created;
  const absl::Status written =
      Await<absl::Status>([&](auto done) { (*store)->Append(kSession, TokenAt(0), done); });
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(redis_->Run({"HGET", absl::StrCat("ovq:session:", kSession), "seq"}).text, "1");
}

TEST_F(RedisTls, SaysWhyThereIsNoConnection) {
  RedisAddress address = Address();
  address.tls->cert = address.tls->key = "";
  EXPECT_THAT(Refusal(address), HasSubstr("certificate required"));
  address = Address();
  address.tls->ca = File("other.pem");
  EXPECT_THAT(Refusal(address), HasSubstr("certificate verify failed"));
  address = Address();
  address.host = "localhost";  // the certificate names the address alone
  EXPECT_THAT(Refusal(address), HasSubstr("certificate verify failed"));
  address = Address();
  address.tls->ca = File("none.pem");
  EXPECT_THAT(Refusal(address), HasSubstr("none.pem: "));
  address = Address();
  address.port = redis_->address().port;  // which waits for the end of a line
  EXPECT_THAT(Refusal(address, absl::Seconds(1)), HasSubstr("no answer within 1s"));
  address = Address();
  address.tls.reset();
  Refusal(address);
}

}  // namespace
}  // namespace ovq::redis::test
