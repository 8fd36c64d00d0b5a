#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

namespace ovq {
namespace {

class Files : public testing::Test {
 protected:
  Files() : path_(testing::TempDir() + "files_test_" + std::to_string(getpid())) {}
  ~Files() override { std::filesystem::remove(path_); }
  const std::string path_;
};

TEST_F(Files, WhatIsWrittenIsRead) {
  const std::string text = std::string("a\0b\n", 4) + std::string(100'000, 'x');
  ASSERT_TRUE(WriteFile(path_, text).ok());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
  EXPECT_EQ(ReadFile(path_, text.size()).value(), text);
  EXPECT_EQ(ReadFile(path_, text.size() - 1).status().message(),
            path_ + ": larger than 100003 bytes");
}

TEST_F(Files, ErrorsNameTheFile) {
  EXPECT_EQ(ReadFile(path_, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadFile(path_, 1).status().message(), path_ + ": No such file or directory");
  EXPECT_EQ(ReadFile("/tmp", 1).status().message(), "/tmp: not a regular file");
  EXPECT_EQ(ReadFileOrPipe("/tmp", 1).status().message(), "/tmp: Is a directory");
  EXPECT_EQ(WriteFile("/no/such", "").message(), "/no/such.part: No such file or directory");
}

TEST_F(Files, WhetherOneCanBeWrittenIsKnownBefore) {
  EXPECT_EQ(CheckWritable("/no/such").message(), "/no/such.part: No such file or directory");
  EXPECT_EQ(CheckWritable("/tmp").message(), "/tmp: Is a directory");
  EXPECT_TRUE(CheckWritable("/dev/null").ok());
  EXPECT_TRUE(CheckWritable(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".part"));
}

TEST_F(Files, ThoseInMemoryAreFilesAsWell) {
  const std::string path = "/dev/shm/files_test_" + std::to_string(getpid());
  EXPECT_TRUE(CheckWritable(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(WriteFile("/dev/shm", "").message(), "/dev/shm: Is a directory");
  EXPECT_TRUE(WriteFile(path, "x").ok());
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  EXPECT_EQ(ReadFile(path, 1).value(), "x");
  std::filesystem::remove(path);
}

TEST_F(Files, APipeIsReadToItsEndOnlyWhereItMayBe) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(ReadFile(path_, 10).status().message(), path_ + ": not a regular file");
  std::thread writer([this] {
    std::FILE* file = std::fopen(path_.c_str(), "w");
    std::fputs("piped", file);
    std::fclose(file);
  });
  EXPECT_EQ(ReadFileOrPipe(path_, 10).value(), "piped");
  writer.join();
}

}  // namespace
}  // namespace ovq
