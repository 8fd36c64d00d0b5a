#include "server/disk/folder_ownership.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/thread_name.h"

namespace ovq::disk {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(2);
constexpr absl::Duration kRequestInterval = absl::Milliseconds(100);

bool IsMissing(const std::string& path) {
  return access(path.c_str(), F_OK) != 0 && errno == ENOENT;
}

// Whether the text ends like the ids of sessions: in 32 hex digits, before which there is nothing
// or a key and a dot.
bool EndsLikeSessionId(absl::string_view text) {
  constexpr size_t kDigits = 32;
  if (text.size() < kDigits) return false;
  const absl::string_view key = text.substr(0, text.size() - kDigits);
  return (key.empty() || absl::EndsWith(key, ".")) &&
         text.find_first_not_of("0123456789abcdef", key.size()) == absl::string_view::npos;
}

// Returns the id of the session whose snapshot, text or half-written file this is; empty for files
// that no server has written.
std::string LeftoverSessionId(const std::string& name) {
  absl::string_view id = name;
  const bool half = absl::ConsumeSuffix(&id, ".part");
  // A text that has not got its name yet ends in a number.
  const absl::string_view named = id.substr(0, id.find_last_not_of("0123456789") + 1);
  if (absl::EndsWith(named, absl::StrCat(SessionFiles::kTextEnd, "."))) {
    id = named.substr(0, named.size() - 1);
  }
  if (absl::ConsumeSuffix(&id, SessionFiles::kSnapshotEnd)) {
    const absl::string_view unversioned = id.substr(0, id.find_last_not_of("0123456789") + 1);
    if (unversioned == id || !absl::EndsWith(unversioned, "-")) return "";
    id = unversioned.substr(0, unversioned.size() - 1);
  } else if (!absl::ConsumeSuffix(&id, SessionFiles::kTextEnd)) {
    if (!absl::ConsumeSuffix(&id, SessionFiles::kJournalEnd) || !half) return "";
  }
  return EndsLikeSessionId(id) ? std::string(id) : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<FolderOwnership>> FolderOwnership::Open(
    const std::string& folder, absl::Duration timeout,
    std::function<void(const absl::Status&)> failed) {
  std::unique_ptr<FolderOwnership> result(new FolderOwnership(folder, timeout, std::move(failed)));
  const std::string asked = folder + "/asked";
  RETURN_IF_ERROR(MakeFolder(folder + "/damaged"));
  ASSIGN_OR_RETURN(result->locks_, SessionLocks::Open(folder + "/locks"));
  RETURN_IF_ERROR(MakeFolder(asked));
  result->requests_ = OpenFile(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  result->wake_ = OpenFile(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  const int requests = result->requests_.fd();
  if (requests < 0 || result->wake_.fd() < 0 ||
      inotify_add_watch(requests, asked.c_str(), IN_CLOSE_WRITE) < 0) {
    return LastError(asked);
  }
  result->thread_ = std::thread([&ownership = *result] { ownership.TransferLoop(); });
  return result;
}

FolderOwnership::~FolderOwnership() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  Interrupt();
  thread_.join();
}

void FolderOwnership::Acquire(const std::string& id, Done done) {
  {
    std::lock_guard lock(mutex_);
    acquisitions_.push_back({.id = id, .begin = SteadyClock::now(), .done = std::move(done)});
  }
  Interrupt();
}

absl::Status FolderOwnership::CheckOwned(const std::string& id) const {
  if (locks_->Holds(id) || IsMissing(files_.JournalPath(id))) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("session ", id, ": this server does not own it"));
}

void FolderOwnership::SetListener(std::function<void(const std::string&)> asked) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(asked);
}

void FolderOwnership::Decline(const std::string& id) { (void)RemoveFile(RequestPath(id)); }

std::string FolderOwnership::RequestPath(const std::string& id) const {
  return absl::StrCat(files_.path(), "/asked/", id);
}

void FolderOwnership::Interrupt() {
  const uint64_t one = 1;
  (void)!write(wake_.fd(), &one, sizeof(one));
}

std::vector<std::string> FolderOwnership::WaitForRequests(absl::Duration timeout) {
  std::array<pollfd, 2> files = {{{requests_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}}};
  const bool forever = timeout == absl::InfiniteDuration();
  (void)poll(files.data(), files.size(),
             forever ? -1 : static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  uint64_t wakes;
  (void)!read(wake_.fd(), &wakes, sizeof(wakes));
  std::vector<std::string> asked;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = read(requests_.fd(), buffer.data(), buffer.size());
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

void FolderOwnership::TransferLoop() {
  NameThisThread("moves");
  std::vector<Acquisition> waiting;
  for (;;) {
    const std::vector<std::string> asked =
        WaitForRequests(waiting.empty() ? absl::InfiniteDuration() : kPollInterval);
    std::unique_lock lock(mutex_);
    const std::function<void(const std::string&)> tell = listener_;
    std::ranges::move(std::exchange(acquisitions_, {}), std::back_inserter(waiting));
    const bool ending = ending_;
    lock.unlock();
    for (const std::string& id : asked) {
      if (tell) tell(id);
    }
    std::erase_if(waiting, [&](Acquisition& call) { return TryFinish(call, ending); });
    if (ending) return;
  }
}

bool FolderOwnership::TryFinish(Acquisition& call, bool ending) {
  absl::StatusOr<store::FoundSession> found = TryAcquire(call.id);
  const auto now = SteadyClock::now();
  const bool asked = call.asked != SteadyTime();
  const std::string request = RequestPath(call.id);
  const absl::Status in_use =
      absl::FailedPreconditionError(absl::StrCat("session ", call.id, ": in use by another call"));
  if (absl::IsAlreadyExists(found.status())) {
    found = in_use;
  } else if (absl::IsUnavailable(found.status())) {
    if (asked && access(request.c_str(), F_OK) != 0) {
      found = in_use;
    } else if (!ending && now - call.begin < timeout_) {
      if (now - call.asked < absl::ToChronoNanoseconds(kRequestInterval)) return false;
      call.asked = now;
      // The closing of a file that was open for writing announces the request, also one that
      // exists already. If the file cannot be created, the session stays with its owner.
      (void)OpenFile::Open(request, O_WRONLY | O_CREAT);
      return false;
    }
  }
  if (asked) (void)RemoveFile(request);
  call.done(std::move(found));
  return true;
}

absl::StatusOr<store::FoundSession> FolderOwnership::TryAcquire(const std::string& id) {
  const std::string journal = files_.JournalPath(id);
  const absl::Status not_found = absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
  if (IsMissing(journal)) return not_found;
  RETURN_IF_ERROR(locks_->Lock(id));
  absl::StatusOr<store::FoundSession> found = files_.Check(id);
  if (found.ok()) return found;
  if (IsMissing(journal)) {  // the session was deleted by a server that owned it meanwhile
    locks_->Unlock(id);
    return not_found;
  }
  const absl::Status why = found.status();
  const std::string words =
      absl::StrCat("session ", id, ": its files: ", std::string(why.message()));
  absl::Status status;
  if (absl::IsDataLoss(why)) {
    status =
        absl::DataLossError(absl::StrCat(words, "; they are now in ", files_.path(), "/damaged"));
    Quarantine(id);
  } else {
    // These codes say where a session is, which no error of its files does.
    const bool taken =
        absl::IsUnavailable(why) || absl::IsAlreadyExists(why) || absl::IsNotFound(why);
    status = absl::Status(taken ? absl::StatusCode::kInternal : why.code(), words);
    locks_->Unlock(id);
  }
  failed_(status);
  return status;
}

absl::StatusOr<store::RecoveredSessions> FolderOwnership::Recover() {
  constexpr int kThreads = 4;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFileNames(files_.path()));
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    if (name.ends_with(SessionFiles::kJournalEnd)) {
      ids.push_back(
          name.substr(0, name.size() - std::string_view(SessionFiles::kJournalEnd).size()));
    }
  }
  std::vector<absl::StatusOr<store::FoundSession>> takes(ids.size());
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (size_t k = next++; k < ids.size(); k = next++) takes[k] = TryAcquire(ids[k]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  store::RecoveredSessions found;
  std::set<std::string> taken, needed;
  for (size_t k = 0; k < ids.size(); ++k) {
    if (takes[k].ok()) {
      const store::FoundSession& session = *takes[k];
      taken.insert(ids[k]);
      if (session.head.version > 0)
        needed.insert(files_.SnapshotPath(ids[k], session.head.version));
      if (session.text_bytes > 0) needed.insert(files_.TextPath(ids[k]));
      found.sessions.push_back(*std::move(takes[k]));
    } else if (absl::IsUnavailable(takes[k].status())) {
      ++found.elsewhere;
    } else if (!absl::IsNotFound(takes[k].status())) {
      found.damaged.emplace_back(takes[k].status().message());
    }
  }
  RemoveLeftovers(names, taken, needed);
  return found;
}

// Removes files that a crash left behind, of this server's sessions and of sessions without a
// journal. One that stays, because its name is a folder's or the system refuses, is told and hurts
// no session.
void FolderOwnership::RemoveLeftovers(const std::vector<std::string>& names,
                                      const std::set<std::string>& taken,
                                      const std::set<std::string>& needed) {
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(files_.path(), "/", name);
    const std::string id = LeftoverSessionId(name);
    if (id.empty() || needed.contains(path)) continue;
    const bool ours = taken.contains(id);
    if (!ours && !locks_->Lock(id).ok()) continue;
    absl::Status status;
    if (ours || IsMissing(files_.JournalPath(id))) status = RemoveFile(path);
    if (!ours) locks_->Unlock(id);
    if (!status.ok()) failed_(InContext("a file that belongs to no session stays", status));
  }
}

void FolderOwnership::Quarantine(const std::string& id) {
  files_.MoveToDamaged(id);
  locks_->Unlock(id);
}

}  // namespace ovq::disk
