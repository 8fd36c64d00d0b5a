#include "server/disk/session_locks.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "server/disk/durable_files.h"

namespace ovq::disk {
namespace {

// Locks are spread over files, because the kernel searches all locks of a file for each new one.
constexpr size_t kFiles = 64;

struct Place {
  size_t file;
  off_t byte;
};

// The place of a session's lock must be the same in all builds of the server. A collision of two
// ids takes about 2^30 sessions.
Place LockPlace(const std::string& id) {
  Sha256 hash;
  hash.Add(id.data(), id.size());
  const std::string digest = hash.Hex();
  return {std::stoul(digest.substr(0, 2), nullptr, 16) % kFiles,
          static_cast<off_t>(std::stoull(digest.substr(2, 16), nullptr, 16) >> 2)};
}

int SetLock(int file, short type, off_t byte) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = byte;
  lock.l_len = 1;
  return fcntl(file, F_OFD_SETLK, &lock);
}

}  // namespace

SessionLocks::SessionLocks(std::string folder) : folder_(std::move(folder)) {}

absl::StatusOr<std::unique_ptr<SessionLocks>> SessionLocks::Open(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return LastError(folder);
  std::unique_ptr<SessionLocks> locks(new SessionLocks(folder));
  for (size_t i = 0; i < kFiles; ++i) {
    const std::string path = absl::StrCat(folder, "/", i);
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return LastError(path);
    locks->files_.push_back(file);
  }
  return locks;
}

SessionLocks::~SessionLocks() {
  for (const int file : files_) close(file);
}

absl::Status SessionLocks::Lock(const std::string& id) {
  const Place place = LockPlace(id);
  std::lock_guard lock(mutex_);
  if (locked_.contains(id)) {
    return absl::AlreadyExistsError(absl::StrCat("session ", id, ": this server has it"));
  }
  if (SetLock(files_[place.file], F_WRLCK, place.byte) == 0) {
    locked_.insert(id);
    return absl::OkStatus();
  }
  if (errno == EAGAIN || errno == EACCES) {
    return absl::UnavailableError(absl::StrCat("session ", id, ": another server has it"));
  }
  return LastError(absl::StrCat(folder_, "/", place.file));
}

void SessionLocks::Unlock(const std::string& id) {
  const Place place = LockPlace(id);
  std::lock_guard lock(mutex_);
  if (locked_.erase(id) > 0) (void)SetLock(files_[place.file], F_UNLCK, place.byte);
}

}  // namespace ovq::disk
