#include "base/mapped_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>
namespace ovq {
namespace {

using testing::HasSubstr;

constexpr size_t kPage = 4096;

class MappedFileTest : public testing::Test {
 protected:
  MappedFileTest() { std::ofstream(path_, std::ios::binary) << std::string(64 * kPage, 'x'); }
  ~MappedFileTest() override { std::remove(path_.c_str()); }
  MappedFile Open() {
    absl::StatusOr<MappedFile> file = MappedFile::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // Sets the file's time; the tests choose one before any write, whatever the file system's clock
  // shows.
  void SetTime(time_t seconds) {
    const timespec times[2] = {{.tv_sec = seconds, .tv_nsec = 0},
                               {.tv_sec = seconds, .tv_nsec = 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path_.c_str(), times, 0), 0);
  }

  const std::string path_ = testing::TempDir() + "/mapped" + std::to_string(getpid());
};

size_t Count(const MappedFile& file, char c) {
  size_t n = 0;
  for (size_t i = 0; i < file.size(); ++i) n += static_cast<char>(file.data()[i]) == c;
  return n;
}

TEST_F(MappedFileTest, ShowsTheFile) {
  const MappedFile file = Open();
  EXPECT_EQ(file.size(), 64 * kPage);
  EXPECT_EQ(Count(file, 'x'), file.size());
  EXPECT_TRUE(file.CheckUnchanged().ok());
  EXPECT_EQ(MappedFile::Open(path_ + "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MappedFile().size(), 0u);
  EXPECT_TRUE(MappedFile().CheckUnchanged().ok());
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytesAndIsChecked) {
  std::ofstream(path_, std::ios::trunc).close();
  const MappedFile file = Open();
  EXPECT_EQ(file.size(), 0u);
  EXPECT_TRUE(file.CheckUnchanged().ok());
  std::ofstream(path_) << "x";
  EXPECT_THAT(std::string(file.CheckUnchanged().message()), HasSubstr("it had 0 bytes, and has 1"));
}

TEST_F(MappedFileTest, AFileThatIsCutReadsAsZerosAndSaysSo) {
  MappedFile first = Open();
  const MappedFile file = std::move(first);
  ASSERT_EQ(truncate(path_.c_str(), 5 * kPage), 0);
  std::vector<std::thread> readers;  // any of them may reach the end first
  for (int i = 0; i < 4; ++i) {
    readers.emplace_back([&] { EXPECT_EQ(Count(file, 'x'), 5 * kPage); });
  }
  for (std::thread& reader : readers) reader.join();
  const absl::Status status = file.CheckUnchanged();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr(
          path_ +
          ": was cut short, or written, while it was read; it had 262144 bytes, and has 20480"));
  // The file has its size again, but what was read differs from its content.
  ASSERT_EQ(truncate(path_.c_str(), 64 * kPage), 0);
  EXPECT_FALSE(file.CheckUnchanged().ok());
  EXPECT_EQ(Count(Open(), '\0'), 59 * kPage) << "the next mapping starts anew";
  EXPECT_TRUE(Open().CheckUnchanged().ok());
}

TEST_F(MappedFileTest, BytesThatWereLostAreTold) {
  SetTime(1'000'000);
  const MappedFile file = Open();
  ASSERT_EQ(truncate(path_.c_str(), 5 * kPage), 0);
  EXPECT_EQ(Count(file, 'x'), 5 * kPage);
  ASSERT_EQ(truncate(path_.c_str(), 64 * kPage), 0);
  SetTime(1'000'000);
  EXPECT_THAT(std::string(file.CheckUnchanged().message()),
              HasSubstr("the bytes from 20480 on could not be read"));
}

TEST_F(MappedFileTest, AFileThatIsWrittenSaysSo) {
  SetTime(1'000'000);
  const MappedFile file = Open();
  const int fd = open(path_.c_str(), O_WRONLY);
  ASSERT_EQ(pwrite(fd, "y", 1, 100), 1);
  close(fd);
  EXPECT_THAT(std::string(file.CheckUnchanged().message()),
              HasSubstr("was written while it was read"));
}

TEST_F(MappedFileTest, OtherBusErrorsEndTheProcess) {
  const MappedFile file = Open();
  EXPECT_EXIT(raise(SIGBUS), testing::KilledBySignal(SIGBUS), "");
  const auto read_behind_the_end = [this] {
    const int fd = open(path_.c_str(), O_RDONLY);
    const MappedFile guarded = Open();
    auto* other = static_cast<volatile char*>(mmap(nullptr, kPage, PROT_READ, MAP_SHARED, fd, 0));
    if (truncate(path_.c_str(), 0) == 0) std::exit(other[0]);
  };
  EXPECT_EXIT(read_behind_the_end(), testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace ovq
