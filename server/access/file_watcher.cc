#include "server/access/file_watcher.h"

#include <sys/stat.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"

namespace ovq::server {

FileSet::FileSet(std::vector<std::string> paths) : paths_(std::move(paths)) {
  std::erase(paths_, "");
  known_ = seen_ = Signature();
}

std::string FileSet::Signature() const {
  std::string text;
  for (const std::string& path : paths_) {
    struct stat info = {};
    if (stat(path.c_str(), &info) != 0) {
      absl::StrAppend(&text, "none;");
      continue;
    }
    absl::StrAppend(&text, info.st_dev, ",", info.st_ino, ",", info.st_size, ",");
    for (const timespec& time : {info.st_mtim, info.st_ctim}) {
      absl::StrAppend(&text, time.tv_sec, ".", time.tv_nsec, ",");
    }
    absl::StrAppend(&text, ";");
  }
  return text;
}

bool FileSet::Changed() {
  std::string now = Signature();
  const bool settled = now == seen_;
  seen_ = std::move(now);
  if (!settled || seen_ == known_) return false;
  known_ = seen_;
  return true;
}

FileWatcher::FileWatcher(std::vector<Watch> watches, absl::Duration interval)
    : watches_(std::move(watches)), interval_(interval), thread_([this] { Loop(); }) {}

FileWatcher::~FileWatcher() {
  ending_.Notify();
  thread_.join();
}

void FileWatcher::Loop() {
  NameThisThread("files");
  while (!ending_.WaitForNotificationWithTimeout(interval_)) {
    const bool forced = forced_.exchange(false);
    for (Watch& watch : watches_) {
      const bool retry = watch.retry_in > 0 && --watch.retry_in == 0;
      if (watch.files.Changed() || retry || forced) watch.retry_in = watch.changed() ? 0 : kRetry;
    }
  }
}

}  // namespace ovq::server
