#include "server/s3/s3_ownership.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_name.h"

namespace ovq::s3 {
namespace {

constexpr absl::Duration kPass = absl::Milliseconds(10);  // between looks at pending calls
constexpr absl::Duration kPollInterval = absl::Milliseconds(100);
constexpr absl::Duration kAskInterval = absl::Seconds(2);  // until it is asked once more
constexpr absl::Duration kHousekeeping = absl::Seconds(1);
constexpr absl::Duration kFarewell = absl::Seconds(3);  // for what is removed at the end
constexpr size_t kCacheBytes = size_t{64} << 20;
constexpr int kWorkers = 16;

absl::Status NotFound(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
}
absl::Status InUse(const std::string& id) {
  return absl::FailedPreconditionError(absl::StrCat("session ", id, ": in use by another call"));
}

}  // namespace

S3Ownership::S3Ownership(S3Client& client, const S3StoreOptions& options, store::Report report,
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
             [this] { return ListenOnce(); }),
      sweeper_(
          client, seen_, garbage_, options, sessions_,
          [this](const std::string& id, absl::StatusOr<StoredObject> stored, SteadyTime until,
                 const Sweeper::Tell& tell) { return Conquer(id, std::move(stored), until, tell); },
          [this](const std::string& id) {
            std::lock_guard lock(mutex_);
            return sessions_.Contains(id) || acquiring_.contains(id) || releasing_.contains(id) ||
                   unsent_.contains(id);
          }) {}

absl::Status S3Ownership::Start() {
  RETURN_IF_ERROR(lease_.Start());
  sweeper_.Start();
  move_thread_ = std::thread([this] { MoveLoop(); });
  return absl::OkStatus();
}

void S3Ownership::End() {
  if (!store::EndThread(move_thread_, mutex_, changed_, ending_)) return;
  lease_.Stop();
  garbage_.Stop();
  sweeper_.Stop();
  workers_.Finish();
  garbage_.RemoveAll(After(SteadyClock::now(), kFarewell));
  lease_.GiveUp();
  asks_.End();
}

// --- Requests from any thread ---

void S3Ownership::Acquire(const std::string& id, Acquired done) {
  {
    std::lock_guard lock(mutex_);
    Acquisition& call = acquisitions_.emplace_back();
    call.id = id;
    call.begin = SteadyClock::now();
    call.done = std::move(done);
  }
  changed_.notify_all();
}

void S3Ownership::SetListener(store::OwnershipListener listener) {
  sessions_.SetListener(std::move(listener.lost));
  sweeper_.SetListener(std::move(listener.found));
  std::lock_guard lock(mutex_);
  asked_ = std::move(listener.asked);
}

// --- Giving sessions up ---

Leaving S3Ownership::BeginLeave(const std::string& id, uint64_t term, Leave how) {
  std::lock_guard lock(mutex_);
  releasing_.insert(id);
  return {sessions_.Remove(id, term), how};
}

void S3Ownership::SendLeave(Leaving leaving, SteadyTime until) {
  const SteadyTime begin = SteadyClock::now();
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
  store::ReportEnd(report_, "release", begin, status);
  std::lock_guard lock(mutex_);
  releasing_.erase(id);
  if (absl::IsUnavailable(status)) unsent_.try_emplace(id, std::move(leaving));
  changed_.notify_all();
}

// Gives up sessions that other servers could not acquire otherwise while this one lives, and
// removes what was replaced.
void S3Ownership::KeepHouse() {
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
  lock.unlock();
  garbage_.RemoveDue();
}

// This server may be the owner of a session without knowing, where an attempt to acquire it got no
// answer. Others could not acquire it then.
absl::Status S3Ownership::ReleaseStray(const std::string& id) {
  const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, {});
  if (stored.ok() && stored->object.owner == sessions_.server()) {
    std::lock_guard lock(mutex_);
    const bool known = sessions_.Contains(id) || releasing_.contains(id) || acquiring_.contains(id);
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

absl::Status S3Ownership::PutConquered(const std::string& id, StoredObject stored,
                                       SteadyTime until) {
  bool unanswered = false;
  absl::StatusOr<std::string> etag =
      client_.PutObject(SessionKey(id), EncodeSessionObject(stored.object),
                        Precondition::This(stored.etag), until, &unanswered);
  if (!etag.ok() && unanswered) {
    const absl::StatusOr<StoredObject> now = ReadSessionObject(client_, id, until);
    if (now.ok() && now->object.nonce == stored.object.nonce) etag = now->etag;
  }
  std::lock_guard lock(mutex_);
  if (!etag.ok()) {
    // This server may own it now without knowing.
    const HeldSession held = {.id = id, .epoch = stored.object.epoch};
    if (unanswered) unsent_.try_emplace(id, Leaving{held, Leave::kRelease});
    const bool changed =
        absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status());
    return changed ? ChangedMeanwhile(id) : etag.status();
  }
  stored.etag = *std::move(etag);
  sessions_.Add(id, std::move(stored));
  unsent_.erase(id);
  return absl::OkStatus();
}

absl::Status S3Ownership::Conquer(const std::string& id, absl::StatusOr<StoredObject> stored,
                                  SteadyTime until, const Sweeper::Tell& tell) {
  {
    std::lock_guard lock(mutex_);
    // `stored` may be what a call or the sweep has written for this server since.
    if (sessions_.Contains(id) || !acquiring_.insert(id).second) return ChangedMeanwhile(id);
  }
  absl::StatusOr<store::FoundSession> found = CheckAndPut(id, std::move(stored), until);
  const absl::Status status = found.status();
  if (found.ok()) tell(*std::move(found));
  std::lock_guard lock(mutex_);
  acquiring_.erase(id);
  return status;
}

absl::StatusOr<store::FoundSession> S3Ownership::CheckAndPut(const std::string& id,
                                                             absl::StatusOr<StoredObject> stored,
                                                             SteadyTime until) {
  if (absl::IsDataLoss(stored.status()) || absl::IsFailedPrecondition(stored.status())) {
    return Quarantine(id, "", stored.status(), until);
  }
  RETURN_IF_ERROR(stored.status());
  SessionObject& object = stored->object;
  absl::StatusOr<store::FoundSession> found = CheckSession(client_, id, object, until);
  if (absl::IsDataLoss(found.status()) || absl::IsFailedPrecondition(found.status())) {
    return Quarantine(id, stored->etag, found.status(), until);
  }
  RETURN_IF_ERROR(found.status());
  object.owner = sessions_.server();
  ++object.epoch;
  found->still_owned = [this, id, epoch = object.epoch] { return sessions_.Owns(id, epoch); };
  object.nonce = UnguessableHex();
  const uint64_t lapses = lease_.lapses();
  RETURN_IF_ERROR(PutConquered(id, *std::move(stored), until));
  if (lease_.lapses() == lapses) return found;
  // Another server may have taken this one for dead after it had read the new owner.
  const auto keep = [](SessionObject&) { return absl::OkStatus(); };
  const absl::Status kept =
      sessions_.Commit(id, sessions_.Term(id), keep, ChangedMeanwhile(id),
                       std::max(until, After(SteadyClock::now(), options_.reply_timeout)));
  if (kept.ok()) return found;
  if (!absl::IsAborted(kept) && !absl::IsUnknown(kept)) {
    SendLeave(BeginLeave(id, sessions_.Term(id), Leave::kRelease), until);
  }
  return absl::IsUnavailable(kept) ? kept : ChangedMeanwhile(id);
}

void S3Ownership::Finish(Acquisition& call, absl::StatusOr<store::FoundSession> found) {
  const bool answered =
      absl::IsNotFound(found.status()) || absl::IsFailedPrecondition(found.status());
  store::ReportEnd(report_, "acquire", call.begin, answered ? absl::OkStatus() : found.status());
  call.answered = true;
  call.done(std::move(found));
  if (!call.asked.empty()) asks_.Withdraw(call.asked, call.id);
}

bool S3Ownership::AnswerLocally(Acquisition& call, bool ending, bool& wait) {
  bool removed = false, told = false;
  {
    std::lock_guard lock(mutex_);
    const bool acquiring = acquiring_.contains(call.id);
    wait = (acquiring || releasing_.contains(call.id)) && !ending;
    if (acquiring && wait) return false;
    const auto leaving = unsent_.find(call.id);
    removed = leaving != unsent_.end() && leaving->second.how != Leave::kRelease;
    if (!removed && !sessions_.Contains(call.id)) return false;
    told = sessions_.WasTold(call.id);
  }
  // Whoever asks for a session that was told as found did not know of it yet.
  Finish(call, removed || told ? NotFound(call.id) : InUse(call.id));
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
  const SteadyTime now = SteadyClock::now();
  if (ending || TimeBetween(call.first, now) >= options_.ownership_timeout) {
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
  const SteadyTime now = SteadyClock::now();
  if (call.first == SteadyTime()) call.first = now;
  call.next = After(now, kPollInterval);
  absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, call.id, {});
  absl::Status status = stored.status();
  if (absl::IsNotFound(status) || (stored.ok() && stored->object.removed)) {
    return Finish(call, NotFound(call.id));
  }
  absl::StatusOr<bool> alive = false;
  const std::string owner = stored.ok() ? stored->object.owner : "";
  if (!owner.empty() && owner != sessions_.server()) alive = seen_.IsAlive(owner, {});
  status = alive.status();
  if (alive.ok() && *alive) {
    status = Ask(call, owner, ending);
    if (status.ok()) return;
  } else if (alive.ok()) {
    status = Conquer(call.id, std::move(stored), {},
                     [&](store::FoundSession found) { Finish(call, std::move(found)); });
    if (status.ok()) return;
  }
  const bool late = TimeBetween(call.first, SteadyClock::now()) >= options_.ownership_timeout;
  const bool again = absl::IsUnavailable(status) || absl::IsAborted(status);
  if (again && !late && !ending) return;
  if (absl::IsAborted(status)) status = absl::UnavailableError(status.message());
  const std::string words(status.message());
  const bool named = absl::StrContains(words, call.id);
  Finish(call, absl::Status(status.code(),
                            named ? words : absl::StrCat("session ", call.id, ": ", words)));
}

// Has workers try the calls whose time it is, and removes those that have their answer.
void S3Ownership::TryDue(Acquisitions& calls, bool ending) {
  calls.remove_if([](const Acquisition& call) { return !call.busy && call.answered; });
  std::set<std::string> ids;
  for (const Acquisition& call : calls) {
    if (call.busy) ids.insert(call.id);
  }
  const SteadyTime now = SteadyClock::now();
  for (Acquisition& call : calls) {
    bool wait = false;
    // A worker may have answered it since the first look.
    if (call.busy || call.answered || AnswerLocally(call, ending, wait) || wait) continue;
    // A second call for a session waits until the first one has its answer.
    if (!ids.insert(call.id).second || (call.next > now && !ending)) continue;
    call.busy = true;
    workers_.Run([this, &call, ending] {
      Try(call, ending);
      call.busy = false;
    });
  }
}

void S3Ownership::MoveLoop() {
  NameThisThread("moves");
  Acquisitions waiting;
  SteadyTime kept = SteadyClock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [this] { return ending_ || !acquisitions_.empty(); };
    if (waiting.empty()) {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(kHousekeeping), ready);
    } else {
      changed_.wait_for(lock, absl::ToChronoNanoseconds(kPass));
    }
    waiting.splice(waiting.end(), acquisitions_);
    const bool ending = ending_;
    lock.unlock();
    TryDue(waiting, ending);
    if (ending && waiting.empty()) return;
    if (TimeBetween(kept, SteadyClock::now()) >= kHousekeeping) {
      const auto keep_house = [this] {  // after an outage this takes long
        KeepHouse();
        housekeeping_ = false;
      };
      if (!housekeeping_.exchange(true)) workers_.Run(keep_house);
      kept = SteadyClock::now();
    }
    lock.lock();
  }
}

absl::Status S3Ownership::ListenOnce() {
  ASSIGN_OR_RETURN(const std::vector<std::string> asked, asks_.Listen());
  std::unique_lock lock(mutex_);
  const std::function<void(const std::string&)> tell = asked_;
  lock.unlock();
  const SteadyTime end = After(SteadyClock::now(), options_.lease / 6);
  for (const std::string& id : asked) {
    if (!sessions_.Contains(id)) {
      // They are listed again, and the lease comes first.
      if (SteadyClock::now() > end) return absl::OkStatus();
      RETURN_IF_ERROR(ReleaseStray(id));
      asks_.Drop(id);
    } else if (tell) {
      tell(id);
    }
  }
  return absl::OkStatus();
}

}  // namespace ovq::s3
