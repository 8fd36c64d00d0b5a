#include "tests/server/store/backends.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "base/files.h"
#include "server/disk/session_folder.h"

namespace ovq::store::test {
namespace {

class FolderBackend final : public Backend {
 public:
  FolderBackend() : path_(testing::TempDir() + "/store" + std::to_string(getpid())) {
    std::filesystem::remove_all(path_);
  }
  ~FolderBackend() override { std::filesystem::remove_all(path_); }

  std::unique_ptr<SessionStore> Open() override {
    return disk::SessionFolder::Open({.path = path_, .ownership_timeout = absl::Seconds(2)})
        .value();
  }
  void BreakAppends(const std::string& id, bool broken) override {
    const std::string journal = path_ + "/" + id + ".journal", away = path_ + "/away";
    std::filesystem::rename(broken ? journal : away, broken ? away : journal);
  }
  void ChangeBytes(const std::string& id, Part part, const Change& change) override {
    std::string path = path_ + "/" + id + (part == Part::kText ? ".text" : ".journal");
    for (const auto& file : std::filesystem::directory_iterator(path_)) {
      const std::string name = file.path().filename();
      if (part == Part::kSnapshot && name.starts_with(id + "-")) path = file.path();
    }
    std::string bytes = ReadFile(path, size_t{1} << 30).value();
    change(bytes);
    ASSERT_TRUE(WriteFile(path, bytes).ok());
  }

 private:
  const std::string path_;
};

}  // namespace

std::vector<BackendCase> Backends() {
  return {{"folder", [] {
             return std::pair<std::unique_ptr<Backend>, std::string>(
                 std::make_unique<FolderBackend>(), "");
           }}};
}

}  // namespace ovq::store::test
