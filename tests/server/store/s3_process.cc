#include "tests/server/store/s3_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "server/http_client/client_connection.h"
#include "tests/folders.h"
#include "tests/server/store/free_port.h"

namespace ovq::store::test {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

SteadyTime Soon() { return After(std::chrono::steady_clock::now(), kPatience); }

}  // namespace

S3Process::S3Process(std::vector<std::string> flags)
    : port_(FreePort()),
      folder_(absl::StrCat(testing::TempDir(), "/objects", UnguessableHex())),
      flags_(std::move(flags)) {
  std::filesystem::create_directories(folder_);
  Start();
  client_ = std::make_unique<s3::S3Client>(address(), credentials(), kPatience);
}

S3Process::~S3Process() {
  Kill();
  std::filesystem::remove_all(folder_);
}

s3::S3Address S3Process::address(int port) const {
  return {.bucket = "sessions",
          .prefix = "some/prefix",
          .endpoint = {.host = "127.0.0.1", .port = port == 0 ? port_ : port}};
}

s3::S3Credentials S3Process::credentials() {
  return {.key_id = "TESTKEY", .secret = "secret/of+the=tests"};
}

std::vector<std::string> S3Process::Keys(const std::string& prefix) {
  std::vector<std::string> keys;
  const auto all = client_->ListAll(prefix, Soon());
  EXPECT_TRUE(all.ok()) << all.status();
  if (!all.ok()) return keys;
  for (const s3::ListedObject& object : *all) keys.push_back(object.key);
  return keys;
}

void S3Process::Control(const std::string& commands) {
  server::ClientConnection connection({.host = "127.0.0.1", .port = port_});
  const auto answer = connection.Exchange(
      {.method = "POST", .target = absl::StrCat("/_control?", commands)}, kPatience, 1 << 20);
  EXPECT_TRUE(answer.ok() && answer->status == 200) << answer.status();
}

void S3Process::Start() {
  std::vector<std::string> words = {kPython,    GoldenFolder() + "/../process/s3_server.py",
                                    "--folder", folder_,
                                    "--port",   absl::StrCat(port_)};
  words.insert(words.end(), flags_.begin(), flags_.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int out[2] = {};
  ASSERT_EQ(pipe2(out, O_CLOEXEC), 0);
  process_ = fork();
  if (process_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out[1], STDOUT_FILENO);
    execv(kPython, pointers.data());
    _exit(127);
  }
  close(out[1]);
  std::string line;
  char byte = 0;
  while (read(out[0], &byte, 1) == 1 && byte != '\n') line += byte;
  close(out[0]);
  ASSERT_EQ(line, "listening") << "the tests' object store did not start";
}

void S3Process::Kill() {
  if (process_ == 0) return;
  kill(process_, SIGKILL);
  waitpid(process_, nullptr, 0);
  process_ = 0;
}

}  // namespace ovq::store::test
