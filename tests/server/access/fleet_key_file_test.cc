// Files of fleet keys, and the one that servers make in their session folder.
#include "server/access/fleet_key_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace ovq::server::test {
namespace {

using testing::HasSubstr;

class FleetKeyFile : public testing::Test {
 protected:
  FleetKeyFile() : folder_(absl::StrCat(testing::TempDir(), "/fleet_key_", getpid())) {
    std::filesystem::create_directory(folder_);
  }
  ~FleetKeyFile() override { std::filesystem::remove_all(folder_); }

  // Writes a file with this mode and returns its path.
  std::string Write(const std::string& text, mode_t mode) const {
    const std::string path = folder_ + "/keys";
    EXPECT_TRUE(WriteFile(path, text).ok());
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  const std::string folder_;
};

TEST_F(FleetKeyFile, IsForItsOwnerAndItsGroupAlone) {
  const std::string key(64, 'a');
  for (const mode_t mode : {0600, 0400, 0640, 0440}) {
    EXPECT_TRUE(LoadFleetKeys(Write(key, mode)).ok()) << mode;
  }
  for (const mode_t mode : {0604, 0660, 0644, 0602, 0601}) {
    const std::string path = Write(key, mode);
    const absl::Status refused = LoadFleetKeys(path).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat(path, ": its mode is 0", absl::StrCat(mode >> 6),
                                       absl::StrCat(mode >> 3 & 7), absl::StrCat(mode & 7),
                                       ", expected 0600")));
  }
}

TEST_F(FleetKeyFile, ErrorsNameTheFile) {
  EXPECT_TRUE(absl::IsNotFound(LoadFleetKeys(folder_ + "/none").status()));
  EXPECT_THAT(std::string(LoadFleetKeys(folder_ + "/none").status().message()),
              HasSubstr(folder_ + "/none"));
  const std::string path = Write("not a key\n", 0600);
  EXPECT_THAT(std::string(LoadFleetKeys(path).status().message()),
              HasSubstr(path + ": line 1: expected a key of 64 to 256 hex digits"));
  EXPECT_FALSE(LoadFleetKeys(folder_).ok()) << "a folder";
}

TEST_F(FleetKeyFile, IsMadeOnceWhereverItIsAskedForFirst) {
  constexpr int kServers = 8;
  std::vector<std::string> signatures(kServers);
  std::vector<std::thread> servers;
  for (std::string& signature : signatures) {
    servers.emplace_back([&] {
      const auto keys = FleetKeysIn(folder_);
      ASSERT_TRUE(keys.ok()) << keys.status();
      signature = (*keys)->Sign("hello");
    });
  }
  for (std::thread& server : servers) server.join();
  EXPECT_EQ(std::set(signatures.begin(), signatures.end()).size(), 1u);
  struct stat info = {};
  ASSERT_EQ(stat((folder_ + "/fleet.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::ElementsAre("fleet.key")) << "no draft is left";
  EXPECT_TRUE((*FleetKeysIn(folder_))->Verify("hello", signatures[0]));
  std::filesystem::remove(folder_ + "/fleet.key");
  EXPECT_FALSE((*FleetKeysIn(folder_))->Verify("hello", signatures[0])) << "another key";
}

}  // namespace
}  // namespace ovq::server::test
