#include "server/s3/sweeper.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/s3/parallel.h"

namespace ovq::s3 {
namespace {

constexpr size_t kSweptTogether = 64;
constexpr int kSweepers = 8;

}  // namespace

Sweeper::Sweeper(S3Client& client, SeenLeases& seen, Garbage& garbage,
                 const S3StoreOptions& options, OwnedSessions& sessions, Conquer conquer,
                 IsHere is_here)
    : client_(client),
      seen_(seen),
      garbage_(garbage),
      options_(options),
      sessions_(sessions),
      conquer_(std::move(conquer)),
      is_here_(std::move(is_here)),
      workers_(kSweepers, "sweep") {}

void Sweeper::Start() {
  next_orphans_ = After(SteadyClock::now(), options_.orphan_age / 24);
  thread_ = std::thread([this] { Loop(); });
}

void Sweeper::Stop() {
  store::EndThread(thread_, mutex_, changed_, ending_);
  workers_.Finish();
}

void Sweeper::SetListener(Tell found) {
  std::lock_guard lock(mutex_);
  found_ = std::move(found);
}

absl::Status Sweeper::AcquireUnowned(const std::vector<std::string>& ids, const Tell& tell,
                                     store::RecoveredSessions& others) {
  std::mutex mutex;  // guards the next ones and `others`
  absl::Status result;
  std::set<std::string> alive;  // servers
  const auto lives = [&](const std::string& owner, SteadyTime until) -> absl::StatusOr<bool> {
    {
      std::lock_guard lock(mutex);
      if (alive.contains(owner)) return true;
    }
    // One that has ended may come back: it is looked at after each session was read.
    ASSIGN_OR_RETURN(const bool is_alive, seen_.IsAlive(owner, until));
    std::lock_guard lock(mutex);
    if (is_alive) alive.insert(owner);
    return is_alive;
  };
  RunAll(workers_, ids.size(), [&](size_t i) {
    {
      std::lock_guard lock(mutex);
      if (absl::IsUnavailable(result)) return;
    }
    const SteadyTime until = After(SteadyClock::now(), options_.patience);
    absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, ids[i], until);
    if (stored.ok() && stored->object.removed) return;
    absl::StatusOr<bool> elsewhere = false;
    if (stored.ok() && !stored->object.owner.empty() &&
        stored->object.owner != sessions_.server()) {
      elsewhere = lives(stored->object.owner, until);
    }
    absl::Status status = elsewhere.status();
    if (elsewhere.ok() && !*elsewhere) {
      status = conquer_(ids[i], std::move(stored), until, tell);
      if (status.ok()) return;
    }
    std::lock_guard lock(mutex);
    if (status.ok() || absl::IsAborted(status)) {
      ++others.elsewhere;  // in the latter case another server, or a call, was faster
    } else if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
      others.damaged.emplace_back(status.message());
    } else if (!absl::IsNotFound(status)) {
      result.Update(status);
    }
  });
  return result;
}

absl::StatusOr<store::RecoveredSessions> Sweeper::Recover() {
  ASSIGN_OR_RETURN(const std::vector<std::string> ids,
                   ListSessions(client_, After(SteadyClock::now(), options_.patience)));
  store::RecoveredSessions found;
  std::mutex mutex;  // guards found.sessions
  const auto add = [&](store::FoundSession session) {
    std::lock_guard lock(mutex);
    found.sessions.push_back(std::move(session));
  };
  RETURN_IF_ERROR(AcquireUnowned(ids, add, found));
  std::ranges::sort(found.sessions, {}, [](const store::FoundSession& s) { return s.head.id; });
  std::ranges::sort(found.damaged);
  return found;
}

// Finds where unowned sessions may be, if there may be any.
absl::Status Sweeper::FindWhere() {
  ASSIGN_OR_RETURN(const bool ended, seen_.AnyEnded({}));
  const SteadyTime now = SteadyClock::now();
  if (now >= next_orphans_) {
    next_orphans_ = After(now, options_.orphan_age);
    // Orphans that stay are found by the next one.
    (void)garbage_.SweepOrphans(options_.patience);
    abandoned_ = true;  // sessions that were released and that nobody acquired
  }
  abandoned_ = abandoned_ || ended;
  if (!abandoned_) return absl::OkStatus();
  ASSIGN_OR_RETURN(unowned_, ListSessions(client_, After(now, options_.patience)));
  abandoned_ = false;
  return absl::OkStatus();
}

SteadyTime Sweeper::Sweep() {
  const SteadyTime next = After(SteadyClock::now(), options_.sweep_interval);
  if (unowned_.empty() && !FindWhere().ok()) return next;
  const size_t count = std::min(unowned_.size(), kSweptTogether);
  std::vector<std::string> ids(unowned_.end() - static_cast<std::ptrdiff_t>(count), unowned_.end());
  unowned_.resize(unowned_.size() - count);
  std::erase_if(ids, is_here_);
  std::unique_lock lock(mutex_);
  const Tell tell = found_;
  lock.unlock();
  if (!tell) ids.clear();
  store::RecoveredSessions others;
  const auto tell_now = [&](store::FoundSession session) {
    const std::string id = session.head.id;
    tell(std::move(session));
    sessions_.SetTold(id);
  };
  const absl::Status status = AcquireUnowned(ids, tell_now, others);
  abandoned_ = abandoned_ || !tell || !status.ok();
  return unowned_.empty() ? next : SteadyTime();
}

void Sweeper::Loop() {
  NameThisThread("sweeper");
  // By then it is known which of the servers that were there at the start have ended.
  SteadyTime next = After(SteadyClock::now(),
                          std::min(options_.lease + absl::Seconds(1), options_.sweep_interval));
  std::unique_lock lock(mutex_);
  while (!changed_.wait_until(lock, next, [this] { return ending_; })) {
    lock.unlock();
    next = Sweep();
    lock.lock();
  }
}

}  // namespace ovq::s3
