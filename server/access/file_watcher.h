// Polls files and reports changes and replacements.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace ovq::server {

// One set of files that belong together. Not thread-safe.
class FileSet {
 public:
  // The current files count as known. Empty paths are left out.
  explicit FileSet(std::vector<std::string> paths);

  // True once after a change, as soon as two calls in a row see the same files: by then a
  // certificate and its key, written one after the other, are both there.
  bool Changed();

 private:
  std::string Signature() const;

  std::vector<std::string> paths_;
  std::string known_;
  std::string seen_;  // signature at the last call
};

// Polls file sets on a thread of its own and calls back there. Follows links, so it notices a
// directory that a link switches (as Kubernetes mounts secrets).
class FileWatcher {
 public:
  struct Watch {
    FileSet files;
    std::function<bool()> changed;  // false: failed; called again after kRetry polls
    int retry_in = 0;               // polls; 0: it did not fail
  };
  static constexpr int kRetry = 20;
  FileWatcher(std::vector<Watch> watches, absl::Duration interval);
  ~FileWatcher();                   // waits for a running call
  void Force() { forced_ = true; }  // any thread: the next poll treats all as changed
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

}  // namespace ovq::server
