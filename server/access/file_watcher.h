// Notices that files were changed or replaced.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace ovq {

// One set of files that belong together. Not thread-safe.
class FileSet {
 public:
  // What is there now counts as known. Empty paths are left out.
  explicit FileSet(std::vector<std::string> paths);

  // True once after a change, when nothing has changed since the call before: a certificate and its
  // key, written one after the other, are then both there.
  bool Changed();

 private:
  std::string Signature() const;

  std::vector<std::string> paths_;
  std::string known_;
  std::string seen_;  // at the last call
};

// Looks at file sets on a thread of its own and calls back there. Follows links, so that a
// directory switched by a link (as Kubernetes mounts secrets) is noticed too.
class FileWatcher {
 public:
  struct Watch {
    FileSet files;
    std::function<bool()> changed;  // false: it failed, and is called again after kRetry looks
    int retry_in = 0;               // looks; 0: it did not fail
  };
  static constexpr int kRetry = 20;
  FileWatcher(std::vector<Watch> watches, absl::Duration interval);
  ~FileWatcher();                   // waits for a running call
  void Force() { forced_ = true; }  // any thread: as if all had changed, at the next look
  FileWatcher(const FileWatcher&) = delete;
  FileWatcher& operator=(const FileWatcher&) = delete;

 private:
  void Loop();

  std::vector<Watch> watches_;
  const absl::Duration interval_;
  std::atomic<bool> forced_ = false;
  absl::Notification ending_;
  std::thread thread_;
};

}  // namespace ovq
