#include "server/disk/transfer_requests.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/disk/durable_files.h"

namespace ovq::disk {

TransferRequests::TransferRequests(std::string folder, int events, int wake)
    : folder_(std::move(folder)), events_(events), wake_(wake) {}

absl::StatusOr<std::unique_ptr<TransferRequests>> TransferRequests::Open(
    const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return LastError(folder);
  const int events = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  const int wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::unique_ptr<TransferRequests> asks(new TransferRequests(folder, events, wake));
  if (events < 0 || wake < 0 || inotify_add_watch(events, folder.c_str(), IN_CLOSE_WRITE) < 0) {
    return LastError(folder);
  }
  return asks;
}

TransferRequests::~TransferRequests() {
  if (events_ >= 0) close(events_);
  if (wake_ >= 0) close(wake_);
}

std::string TransferRequests::FilePath(const std::string& id) const {
  return absl::StrCat(folder_, "/", id);
}

// Watchers see the closing of a file that was open for writing, so a request that exists already is
// announced again. If the file cannot be created, the session stays with its owner.
void TransferRequests::RequestTransfer(const std::string& id) {
  const int fd = open(FilePath(id).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
}

bool TransferRequests::IsTransferRequested(const std::string& id) const {
  return access(FilePath(id).c_str(), F_OK) == 0;
}

void TransferRequests::Remove(const std::string& id) { (void)RemoveFile(FilePath(id)); }

void TransferRequests::Interrupt() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

std::vector<std::string> TransferRequests::Wait(absl::Duration timeout) {
  std::array<pollfd, 2> files = {{{events_, POLLIN, 0}, {wake_, POLLIN, 0}}};
  const bool forever = timeout == absl::InfiniteDuration();
  (void)poll(files.data(), files.size(),
             forever ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  uint64_t wakes;
  (void)!read(wake_, &wakes, sizeof(wakes));
  std::vector<std::string> asked;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = read(events_, buffer.data(), buffer.size());
    if (n <= 0) return asked;
    for (ssize_t at = 0; at < n;) {
      inotify_event event;
      std::memcpy(&event, &buffer[at], sizeof(event));
      at += static_cast<ssize_t>(sizeof(event));
      if (event.len > 0) asked.emplace_back(&buffer[at]);
      at += event.len;
    }
  }
}

}  // namespace ovq::disk
