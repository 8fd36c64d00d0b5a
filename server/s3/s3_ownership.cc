#include "server/s3/s3_ownership.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/s3/parallel.h"

namespace ovq::s3 {
namespace {

using OwnershipClock = std::chrono::steady_clock;

constexpr absl::Duration kPass = absl::Milliseconds(10);  // between looks at pending calls
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kAskInterval = absl::Seconds(2);  // until it is asked once more
constexpr absl::Duration kHousekeeping = absl::Seconds(1);
constexpr absl::Duration kFarewell = absl::Seconds(3);  // for what is removed at the end
constexpr size_t kCacheBytes = size_t{64} << 20;
constexpr size_t kSweptTogether = 64;
constexpr int kWorkers = 8;

absl::Status NotFound(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
}
SteadyTime Deadline(const S3StoreOptions& options) {
  return After(OwnershipClock::now(), options.patience);
}
absl::Status InUse(const std::string& id) {
  return absl::FailedPreconditionError(absl::StrCat("session ", id, ": in use by another call"));
}

}  // namespace

S3Ownership::S3Ownership(S3Client& client, const S3StoreOptions& options, Report report,
                         LeaseKeeper::Touch touch)
    : client_(client),
      options_(options),
      report_(std::move(report)),
      sessions_(client, UnguessableHex(), kCacheBytes),
      garbage_(client, sessions_, options),
      seen_(client),
      asks_(client, sessions_.server()),
      workers_(kWorkers, "moves"),
      lease_(client, sessions_, options, report_, std::move(touch),
             [this] { return ListenOnce(); }) {}

absl::Status S3Ownership::Start() {
  RETURN_IF_ERROR(lease_.Start());
  const SteadyTime now = OwnershipClock::now();
  // By then it is known which of the servers that were there at the start have ended.
  next_sweep_ = After(now, std::min(options_.lease + absl::Seconds(1), options_.sweep_interval));
  next_orphans_ = After(now, options_.orphan_age / 24);
  abandoned_ = true;
  move_thread_ = std::thread([this] { MoveLoop(); });
  return absl::OkStatus();
}

void S3Ownership::End() {
  if (!move_thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  move_thread_.join();
  lease_.Stop();
  garbage_.Stop();
  workers_.Finish();
  garbage_.RemoveAll(After(OwnershipClock::now(), kFarewell));
  lease_.GiveUp();
  asks_.End();
}

// --- Requests from any thread ---

void S3Ownership::Acquire(const std::string& id, Acquired done) {
  {
    std::lock_guard lock(mutex_);
    acquisitions_.push_back({.id = id, .begin = OwnershipClock::now(), .done = std::move(done)});
  }
  changed_.notify_all();
}

void S3Ownership::SetListener(store::OwnershipListener listener) {
  sessions_.SetListener(std::move(listener.lost));
  std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

// --- Giving sessions up ---

Leaving S3Ownership::BeginLeave(const std::string& id, uint64_t term, Leave how) {
  std::lock_guard lock(mutex_);
  releasing_.insert(id);
  return {sessions_.Remove(id, term), how};
}

void S3Ownership::SendLeave(Leaving leaving, SteadyTime until) {
  const SteadyTime begin = OwnershipClock::now();
  const std::string id = leaving.held.id;
  if (leaving.held.epoch == 0) {  // it was lost before
    std::lock_guard lock(mutex_);
    releasing_.erase(id);
    return;
  }
  absl::Status status = WriteLeave(client_, sessions_, garbage_, leaving, until);
  const bool refused = !status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status) &&
                       !absl::IsNotFound(status) && !absl::IsFailedPrecondition(status);
  if (refused && leaving.how != Leave::kRelease) {
    leaving.how = Leave::kRelease;  // others can have it at least
    status = WriteLeave(client_, sessions_, garbage_, leaving, until);
  }
  const bool elsewhere = absl::IsAborted(status) && leaving.how == Leave::kRelease;
  if (absl::IsNotFound(status) || elsewhere) status = absl::OkStatus();
  if (report_) {
    report_({.kind = "release",
             .duration = TimeBetween(begin, OwnershipClock::now()),
             .status = status});
  }
  std::lock_guard lock(mutex_);
  releasing_.erase(id);
  if (absl::IsUnavailable(status)) unsent_.try_emplace(id, std::move(leaving));
  changed_.notify_all();
}

// Gives up sessions that other servers could not acquire otherwise while this one lives.
void S3Ownership::RetryLeaves() {
  std::unique_lock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, leaving] : unsent_) ids.push_back(id);
  for (const std::string& id : ids) {
    if (ending_) return;  // the lease ends, too
    auto node = unsent_.extract(id);
    if (node.empty() || sessions_.Contains(id)) continue;
    releasing_.insert(id);
    lock.unlock();
    SendLeave(std::move(node.mapped()), {});
    lock.lock();
    if (unsent_.contains(id)) return;  // the object store cannot be reached
  }
}

// This server may be the owner of a session without knowing, where an attempt to acquire it got no
// answer. Others could not acquire it then.
absl::Status S3Ownership::ReleaseStray(const std::string& id) {
  const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, {});
  if (stored.ok() && stored->object.owner == sessions_.server()) {
    std::lock_guard lock(mutex_);
    const bool known = sessions_.Contains(id) || releasing_.contains(id);
    const HeldSession held = {.id = id, .epoch = stored->object.epoch};
    if (!known) unsent_.try_emplace(id, Leaving{held, Leave::kRelease});
  }
  return absl::IsUnavailable(stored.status()) ? stored.status() : absl::OkStatus();
}

// --- Acquiring ---

absl::Status S3Ownership::Quarantine(const std::string& id, const std::string& etag,
                                     const absl::Status& why, SteadyTime until) {
  const absl::Status status = QuarantineDamaged(client_, id, etag, why, until);
  if (report_ && !absl::IsAborted(status)) report_({.kind = "read", .status = status});
  return status;
}

absl::StatusOr<store::FoundSession> S3Ownership::Conquer(const std::string& id, StoredObject stored,
                                                         SteadyTime until) {
  SessionObject& object = stored.object;
  absl::StatusOr<store::FoundSession> found = CheckSession(client_, id, object, until);
  if (absl::IsDataLoss(found.status()) || absl::IsFailedPrecondition(found.status())) {
    return Quarantine(id, stored.etag, found.status(), until);
  }
  RETURN_IF_ERROR(found.status());
  object.owner = sessions_.server();
  ++object.epoch;
  object.nonce = UnguessableHex();
  bool unanswered = false;
  absl::StatusOr<std::string> etag =
      client_.PutObject(SessionKey(id), EncodeSessionObject(object),
                        Precondition::This(stored.etag), until, &unanswered);
  if (!etag.ok() && unanswered) {
    const absl::StatusOr<StoredObject> now = ReadSessionObject(client_, id, until);
    if (now.ok() && now->object.nonce == object.nonce) etag = now->etag;
  }
  std::lock_guard lock(mutex_);
  if (!etag.ok()) {
    // This server may own it now without knowing.
    const HeldSession held = {.id = id, .epoch = object.epoch};
    if (unanswered) unsent_.try_emplace(id, Leaving{held, Leave::kRelease});
    const bool changed =
        absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status());
    return changed ? ChangedMeanwhile(id) : etag.status();
  }
  stored.etag = *std::move(etag);
  sessions_.Add(id, std::move(stored));
  unsent_.erase(id);
  return found;
}

void S3Ownership::Finish(Acquisition& call, absl::StatusOr<store::FoundSession> found) {
  if (report_) {
    const bool answered = found.ok() || absl::IsNotFound(found.status()) ||
                          absl::IsFailedPrecondition(found.status());
    report_({.kind = "acquire",
             .duration = TimeBetween(call.begin, OwnershipClock::now()),
             .status = answered ? absl::OkStatus() : found.status()});
  }
  call.answered = true;
  call.done(std::move(found));
  if (!call.asked.empty()) asks_.Withdraw(call.asked, call.id);
}

bool S3Ownership::AnswerLocally(Acquisition& call, bool ending, bool& wait) {
  bool removed = false;
  {
    std::lock_guard lock(mutex_);
    wait = releasing_.contains(call.id) && !ending;
    const auto leaving = unsent_.find(call.id);
    removed = leaving != unsent_.end() && leaving->second.how != Leave::kRelease;
    if (!removed && !sessions_.Contains(call.id)) return false;
  }
  Finish(call, removed ? NotFound(call.id) : InUse(call.id));
  return true;
}

absl::Status S3Ownership::Ask(Acquisition& call, const std::string& owner, bool ending) {
  if (call.asked == owner) {
    ASSIGN_OR_RETURN(const bool declined, asks_.WasDeclined(owner, call.id));
    if (declined) {
      Finish(call, InUse(call.id));
      return absl::OkStatus();
    }
  }
  const SteadyTime now = OwnershipClock::now();
  if (ending || TimeBetween(call.begin, now) >= options_.ownership_timeout) {
    Finish(call, absl::UnavailableError(absl::StrCat(
                     "session ", call.id, ": another server has it and does not answer")));
    return absl::OkStatus();
  }
  if (call.asked == owner && TimeBetween(call.asked_at, now) < kAskInterval) {
    return absl::OkStatus();
  }
  if (!call.asked.empty() && call.asked != owner) asks_.Withdraw(call.asked, call.id);
  call.asked.clear();
  RETURN_IF_ERROR(asks_.Ask(owner, call.id));
  call.asked = owner;
  call.asked_at = now;
  return absl::OkStatus();
}

// Leaves the call unanswered where it is to be tried again.
void S3Ownership::Try(Acquisition& call, bool ending) {
  call.next = After(OwnershipClock::now(), kPollInterval);
  absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, call.id, {});
  absl::Status status = stored.status();
  if (absl::IsNotFound(status) || (stored.ok() && stored->object.removed)) {
    return Finish(call, NotFound(call.id));
  }
  if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
    status = Quarantine(call.id, "", status, {});
  } else if (stored.ok()) {
    const std::string owner = stored->object.owner;
    absl::StatusOr<bool> alive = false;
    if (!owner.empty() && owner != sessions_.server()) alive = seen_.IsAlive(owner, {});
    status = alive.status();
    if (alive.ok() && *alive) {
      status = Ask(call, owner, ending);
      if (status.ok()) return;
    } else if (alive.ok()) {
      absl::StatusOr<store::FoundSession> found = Conquer(call.id, *std::move(stored), {});
      if (found.ok()) return Finish(call, std::move(found));
      status = found.status();
    }
  }
  const bool late = TimeBetween(call.begin, OwnershipClock::now()) >= options_.ownership_timeout;
  const bool again = absl::IsUnavailable(status) || absl::IsAborted(status);
  if (again && !late && !ending) return;
  if (absl::IsAborted(status)) status = absl::UnavailableError(status.message());
  const std::string words(status.message());
  const bool named = absl::StrContains(words, call.id);
  Finish(call, absl::Status(status.code(),
                            named ? words : absl::StrCat("session ", call.id, ": ", words)));
}

void S3Ownership::AcquireAll(std::vector<Acquisition>& calls, bool ending) {
  const SteadyTime now = OwnershipClock::now();
  std::vector<Acquisition*> due;
  std::set<std::string> ids;
  for (Acquisition& call : calls) {
    bool wait = false;
    if (AnswerLocally(call, ending, wait) || wait) continue;
    if (call.next > now && !ending) {
      ids.insert(call.id);
      continue;
    }
    // A second call for a session waits until the first one has its answer.
    if (ids.insert(call.id).second) due.push_back(&call);
  }
  RunAll(workers_, due.size(), [&](size_t i) { Try(*due[i], ending); });
  std::erase_if(calls, [](const Acquisition& call) { return call.answered; });
}

// --- Sessions that nobody asks for ---

absl::Status S3Ownership::AcquireUnowned(const std::vector<std::string>& ids,
                                         store::RecoveredSessions& found) {
  std::mutex mutex;  // guards the next ones and `found`
  absl::Status result;
  std::set<std::string> alive;  // servers
  const auto is_alive = [&](const std::string& owner, SteadyTime until) -> absl::StatusOr<bool> {
    {
      std::lock_guard lock(mutex);
      if (alive.contains(owner)) return true;
    }
    // One that has ended may come back: it is looked at after each session was read.
    ASSIGN_OR_RETURN(const bool lives, seen_.IsAlive(owner, until));
    std::lock_guard lock(mutex);
    if (lives) alive.insert(owner);
    return lives;
  };
  RunAll(workers_, ids.size(), [&](size_t i) {
    const SteadyTime until = Deadline(options_);
    absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, ids[i], until);
    absl::Status status = stored.status();
    bool elsewhere = false;
    std::optional<store::FoundSession> session;
    if (stored.ok()) {
      if (stored->object.removed) return;
      const std::string owner = stored->object.owner;
      if (!owner.empty() && owner != sessions_.server()) {
        const absl::StatusOr<bool> lives = is_alive(owner, until);
        status = lives.status();
        elsewhere = lives.ok() && *lives;
      }
      if (status.ok() && !elsewhere) {
        absl::StatusOr<store::FoundSession> mine = Conquer(ids[i], *std::move(stored), until);
        status = mine.status();
        if (mine.ok()) session = *std::move(mine);
      }
    } else if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
      status = Quarantine(ids[i], "", status, until);
    }
    std::lock_guard lock(mutex);
    if (session) {
      found.sessions.push_back(*std::move(session));
    } else if (elsewhere || absl::IsAborted(status)) {
      ++found.elsewhere;  // in the latter case another server was faster
    } else if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
      found.damaged.emplace_back(status.message());
    } else if (!absl::IsNotFound(status)) {
      result.Update(status);
    }
  });
  std::ranges::sort(found.sessions, {}, [](const store::FoundSession& s) { return s.head.id; });
  std::ranges::sort(found.damaged);
  return result;
}

absl::StatusOr<store::RecoveredSessions> S3Ownership::Recover() {
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, ListSessions(client_, Deadline(options_)));
  store::RecoveredSessions found;
  RETURN_IF_ERROR(AcquireUnowned(ids, found));
  return found;
}

void S3Ownership::Sweep() {
  const SteadyTime now = OwnershipClock::now();
  next_sweep_ = After(now, options_.sweep_interval);
  if (unowned_.empty()) {
    const absl::StatusOr<bool> ended = seen_.AnyEnded({});
    if (!ended.ok()) return;
    if (now >= next_orphans_) {
      next_orphans_ = After(now, options_.orphan_age);
      // Orphans that stay are found by the next one.
      workers_.Run([this] { (void)garbage_.SweepOrphans(options_.patience); });
      abandoned_ = true;  // sessions that were released and that nobody acquired
    }
    abandoned_ = abandoned_ || *ended;
    if (!abandoned_) return;
    absl::StatusOr<std::vector<std::string>> ids = ListSessions(client_, Deadline(options_));
    if (!ids.ok()) return;
    unowned_ = *std::move(ids);
    abandoned_ = false;
  }
  const size_t count = std::min(unowned_.size(), kSweptTogether);
  std::vector<std::string> ids(unowned_.end() - static_cast<std::ptrdiff_t>(count), unowned_.end());
  unowned_.resize(unowned_.size() - count);
  std::unique_lock lock(mutex_);
  const std::function<void(store::FoundSession)> tell = listener_.found;
  std::erase_if(ids, [&](const std::string& id) {
    return sessions_.Contains(id) || releasing_.contains(id) || unsent_.contains(id);
  });
  lock.unlock();
  if (!tell) ids.clear();
  store::RecoveredSessions found;
  const absl::Status status = AcquireUnowned(ids, found);
  for (store::FoundSession& session : found.sessions) tell(std::move(session));
  abandoned_ = abandoned_ || !tell || !status.ok();
  if (!unowned_.empty()) next_sweep_ = {};  // goes on after calls of Acquire
}

void S3Ownership::MoveLoop() {
  NameThisThread("moves");
  std::vector<Acquisition> waiting;
  SteadyTime kept = OwnershipClock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [this] { return ending_ || !acquisitions_.empty(); };
    changed_.wait_for(lock, absl::ToChronoNanoseconds(waiting.empty() ? kHousekeeping : kPass),
                      ready);
    std::ranges::move(std::exchange(acquisitions_, {}), std::back_inserter(waiting));
    const bool ending = ending_;
    lock.unlock();
    AcquireAll(waiting, ending);
    if (ending && waiting.empty()) return;
    if (TimeBetween(kept, OwnershipClock::now()) >= kHousekeeping) {
      const auto keep_house = [this] {  // after an outage this takes long
        RetryLeaves();
        garbage_.RemoveDue();
        housekeeping_ = false;
      };
      if (!housekeeping_.exchange(true)) workers_.Run(keep_house);
      kept = OwnershipClock::now();
    }
    if (!ending && OwnershipClock::now() >= next_sweep_) Sweep();
    lock.lock();
  }
}

absl::Status S3Ownership::ListenOnce() {
  ASSIGN_OR_RETURN(const std::vector<std::string> asked, asks_.Listen());
  std::unique_lock lock(mutex_);
  const std::function<void(const std::string&)> tell = listener_.asked;
  lock.unlock();
  for (const std::string& id : asked) {
    if (!sessions_.Contains(id)) {
      RETURN_IF_ERROR(ReleaseStray(id));
      asks_.Drop(id);
    } else if (tell) {
      tell(id);
    }
  }
  return absl::OkStatus();
}

}  // namespace ovq::s3
