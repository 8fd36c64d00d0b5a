#include "server/disk/session_locks.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/sha256.h"
#include "base/status_macros.h"

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

int SetLock(const OpenFile& file, short type, off_t byte) {
  struct flock lock = {
      .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1, .l_pid = 0};
  return fcntl(file.fd(), F_OFD_SETLK, &lock);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionLocks>> SessionLocks::Open(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolder(folder));
  std::unique_ptr<SessionLocks> locks(new SessionLocks(folder));
  for (size_t i = 0; i < kFiles; ++i) {
    ASSIGN_OR_RETURN(OpenFile file, OpenFile::Open(absl::StrCat(folder, "/", i), O_RDWR | O_CREAT));
    locks->files_.push_back(std::move(file));
  }
  return locks;
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

bool SessionLocks::Holds(const std::string& id) {
  std::lock_guard lock(mutex_);
  return locked_.contains(id);
}

size_t SessionLocks::size() {
  std::lock_guard lock(mutex_);
  return locked_.size();
}

void SessionLocks::Unlock(const std::string& id) {
  const Place place = LockPlace(id);
  std::lock_guard lock(mutex_);
  if (locked_.erase(id) > 0) (void)SetLock(files_[place.file], F_UNLCK, place.byte);
}

}  // namespace ovq::disk
