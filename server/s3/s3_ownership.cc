#include "server/s3/s3_ownership.h"

#include <algorithm>
#include <optional>
#include <utility>

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
constexpr size_t kCacheBytes = size_t{64} << 20;
constexpr size_t kSweptTogether = 64;
constexpr int kWorkers = 8;

absl::Status NotFound(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
}
absl::Status InUse(const std::string& id) {
  return absl::FailedPreconditionError(absl::StrCat("session ", id, ": in use by another call"));
}

// Another server has changed a session while this one was about to.
absl::Status Changed(const std::string& id) {
  return absl::AbortedError(absl::StrCat("session ", id, ": it has changed meanwhile"));
}

// A removed session keeps nothing but its epoch.
absl::Status MakeRemoved(SessionObject& object) {
  object = {.epoch = object.epoch, .removed = true};
  return absl::OkStatus();
}

}  // namespace

S3Ownership::S3Ownership(S3Client& client, const S3StoreOptions& options, Report report)
    : client_(client),
      options_(options),
      report_(std::move(report)),
      sessions_(client, UnguessableHex(), kCacheBytes),
      garbage_(client, sessions_, options),
      lease_(client, sessions_.server(), options.lease),
      seen_(client),
      asks_(client, sessions_.server()),
      workers_(kWorkers, "moves") {}

SteadyTime S3Ownership::Deadline() const { return After(OwnershipClock::now(), options_.patience); }

absl::Status S3Ownership::Start() {
  RETURN_IF_ERROR(Renew(Deadline()));
  verify_ = false;
  sure_until_ = absl::ToInt64Nanoseconds(lease_.end());
  const SteadyTime now = OwnershipClock::now();
  // By then it is known which of the servers that were there at the start have ended.
  next_sweep_ = After(now, std::min(options_.lease + absl::Seconds(1), options_.sweep_interval));
  next_orphans_ = After(now, options_.orphan_age / 24);
  abandoned_ = true;
  move_thread_ = std::thread([this] { MoveLoop(); });
  lease_thread_ = std::thread([this] { LeaseLoop(); });
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
  lease_thread_.join();
  workers_.Finish();
  garbage_.RemoveDue(/*all=*/true);
  lease_.End();
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

bool S3Ownership::sure() const { return absl::ToInt64Nanoseconds(BootTime()) < sure_until_; }

void S3Ownership::Confirm(store::SessionStore::Done done) {
  {
    std::lock_guard lock(mutex_);
    confirmations_.push_back(std::move(done));
  }
  changed_.notify_all();
}

// --- Giving sessions up ---

Leaving S3Ownership::BeginLeave(const std::string& id, Leave how) {
  std::lock_guard lock(mutex_);
  releasing_.insert(id);
  return {sessions_.Remove(id), how};
}

absl::Status S3Ownership::WriteLeave(Leaving& leaving, SteadyTime until) {
  HeldSession& held = leaving.held;
  bool unanswered = false;
  if (leaving.how == Leave::kRelease) {
    const auto release = [](SessionObject& object) {
      object.owner.clear();
      return absl::OkStatus();
    };
    return sessions_.Write(held, release, until, unanswered);
  }
  std::vector<std::string> data;
  const auto remove = [&](SessionObject& object) -> absl::Status {
    if (leaving.how == Leave::kQuarantine) {
      const std::string key = absl::StrCat(kDamagedPrefix, held.id);
      RETURN_IF_ERROR(client_.PutObject(key, EncodeSessionObject(object), {}, until).status());
    } else {
      data = DataKeys(held.id, object);
    }
    return MakeRemoved(object);
  };
  const absl::Status status = sessions_.Write(held, remove, until, unanswered);
  if (absl::IsNotFound(status) && leaving.how == Leave::kUncreate) {
    // With this there, the creation that may still be under way comes to nothing.
    const SessionObject removed = {.epoch = 1, .nonce = UnguessableHex(), .removed = true};
    return client_
        .PutObject(SessionKey(held.id), EncodeSessionObject(removed), Precondition::Absent(), until)
        .status();
  }
  if (!status.ok()) return status;
  garbage_.RemoveLater(std::move(data));
  if (held.stored && leaving.how != Leave::kUncreate) {
    (void)client_.Delete(SessionKey(held.id), /*until=*/{}, held.stored->etag);
  }
  return status;
}

void S3Ownership::SendLeave(Leaving leaving, SteadyTime until) {
  const SteadyTime begin = OwnershipClock::now();
  const std::string id = leaving.held.id;
  absl::Status status = WriteLeave(leaving, until);
  const bool refused = !status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status) &&
                       !absl::IsNotFound(status) && !absl::IsFailedPrecondition(status);
  if (refused && leaving.how != Leave::kRelease) {
    leaving.how = Leave::kRelease;  // others can have it at least
    status = WriteLeave(leaving, until);
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
  if (absl::IsUnavailable(status)) unsent_[id] = std::move(leaving);
  changed_.notify_all();
}

// Gives up sessions that other servers could not acquire otherwise while this one lives.
void S3Ownership::RetryLeaves() {
  std::unique_lock lock(mutex_);
  std::vector<std::string> ids;
  for (const auto& [id, leaving] : unsent_) ids.push_back(id);
  for (const std::string& id : ids) {
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
    if (!known) unsent_.try_emplace(id, Leaving{{id, stored->object.epoch, std::nullopt}});
  }
  return absl::IsUnavailable(stored.status()) ? stored.status() : absl::OkStatus();
}

// --- Acquiring ---

absl::Status S3Ownership::QuarantineDamaged(const std::string& id, const std::string& etag,
                                            const absl::Status& why, SteadyTime until) {
  absl::Status status = why;
  if (absl::IsDataLoss(why)) {
    ASSIGN_OR_RETURN(const ObjectBytes object, client_.GetObject(SessionKey(id), until));
    const bool changed =
        etag.empty() ? DecodeSessionObject(object.bytes).ok() : object.etag != etag;
    if (changed) return Changed(id);
    const std::string damaged = absl::StrCat(kDamagedPrefix, id);
    RETURN_IF_ERROR(client_.PutObject(damaged, object.bytes, {}, until).status());
    const SessionObject removed = {.nonce = UnguessableHex(), .removed = true};
    const absl::StatusOr<std::string> now = client_.PutObject(
        SessionKey(id), EncodeSessionObject(removed), Precondition::This(object.etag), until);
    if (absl::IsFailedPrecondition(now.status())) return Changed(id);
    RETURN_IF_ERROR(now.status());
    (void)client_.Delete(SessionKey(id), until, *now);
    status = absl::DataLossError(
        absl::StrCat(std::string(why.message()), "; its object is now ", damaged));
  }
  if (report_) report_({.kind = "read", .status = status});
  return status;
}

absl::StatusOr<store::FoundSession> S3Ownership::Conquer(const std::string& id, StoredObject stored,
                                                         SteadyTime until) {
  SessionObject& object = stored.object;
  absl::StatusOr<store::FoundSession> found = CheckSession(client_, id, object, until);
  if (absl::IsDataLoss(found.status()) || absl::IsFailedPrecondition(found.status())) {
    return QuarantineDamaged(id, stored.etag, found.status(), until);
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
    if (unanswered) unsent_.insert_or_assign(id, Leaving{held, Leave::kRelease});
    const bool changed =
        absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status());
    return changed ? Changed(id) : etag.status();
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

absl::Status S3Ownership::Ask(Acquisition& call, const StoredObject& stored, bool ending) {
  const std::string& owner = stored.object.owner;
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
  call.asked = owner;
  call.asked_at = now;
  return asks_.Ask(owner, call.id);
}

absl::Status S3Ownership::TryStored(Acquisition& call, StoredObject stored, bool ending) {
  if (stored.object.removed) {
    Finish(call, NotFound(call.id));
    return absl::OkStatus();
  }
  const std::string& owner = stored.object.owner;
  if (!owner.empty() && owner != sessions_.server()) {
    ASSIGN_OR_RETURN(const bool alive, seen_.IsAlive(owner, {}));
    if (alive) return Ask(call, stored, ending);
  }
  absl::StatusOr<store::FoundSession> found = Conquer(call.id, std::move(stored), {});
  if (absl::IsUnavailable(found.status()) || absl::IsAborted(found.status())) {
    return absl::UnavailableError(found.status().message());
  }
  Finish(call, std::move(found));
  return absl::OkStatus();
}

void S3Ownership::Try(Acquisition& call, bool ending) {
  call.next = After(OwnershipClock::now(), kPollInterval);
  absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, call.id, {});
  if (absl::IsNotFound(stored.status())) return Finish(call, NotFound(call.id));
  absl::Status status = stored.status();
  if (absl::IsDataLoss(status) || absl::IsFailedPrecondition(status)) {
    status = QuarantineDamaged(call.id, "", status, {});
    if (absl::IsAborted(status)) return;
  }
  if (stored.ok()) {
    status = TryStored(call, *std::move(stored), ending);
    if (status.ok()) return;
  }
  const bool late = TimeBetween(call.begin, OwnershipClock::now()) >= options_.ownership_timeout;
  if (absl::IsUnavailable(status) && !late && !ending) return;
  Finish(call, absl::Status(status.code(), absl::StrCat("session ", call.id, ": ",
                                                        std::string(status.message()))));
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

absl::StatusOr<std::vector<std::string>> S3Ownership::ListSessions() {
  ASSIGN_OR_RETURN(const std::vector<ListedObject> all,
                   client_.ListAll(kSessionPrefix, Deadline()));
  std::vector<std::string> ids;
  for (const ListedObject& object : all) {
    ids.push_back(object.key.substr(std::string_view(kSessionPrefix).size()));
  }
  return ids;
}

absl::Status S3Ownership::AcquireUnowned(const std::vector<std::string>& ids,
                                         store::RecoveredSessions& found) {
  std::mutex mutex;  // guards the next ones and `found`
  absl::Status result;
  std::map<std::string, bool> alive;  // servers
  const auto is_alive = [&](const std::string& owner, SteadyTime until) -> absl::StatusOr<bool> {
    {
      std::lock_guard lock(mutex);
      if (const auto known = alive.find(owner); known != alive.end()) return known->second;
    }
    ASSIGN_OR_RETURN(const bool lives, seen_.IsAlive(owner, until));
    std::lock_guard lock(mutex);
    return alive[owner] = lives;
  };
  RunAll(workers_, ids.size(), [&](size_t i) {
    const SteadyTime until = Deadline();
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
      status = QuarantineDamaged(ids[i], "", status, until);
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
  ASSIGN_OR_RETURN(const std::vector<std::string> ids, ListSessions());
  store::RecoveredSessions found;
  RETURN_IF_ERROR(AcquireUnowned(ids, found));
  return found;
}

absl::Status S3Ownership::FindAbandoned() {
  const SteadyTime now = OwnershipClock::now();
  ASSIGN_OR_RETURN(const bool ended, seen_.AnyEnded({}));
  if (now >= next_orphans_) {
    next_orphans_ = After(now, options_.orphan_age);
    (void)garbage_.SweepOrphans(Deadline());  // what stays is found by the next one
    abandoned_ = true;  // sessions that were released and that nobody acquired
  }
  abandoned_ = abandoned_ || ended;
  if (!abandoned_) return absl::OkStatus();
  ASSIGN_OR_RETURN(unowned_, ListSessions());
  abandoned_ = false;
  return absl::OkStatus();
}

void S3Ownership::Sweep() {
  next_sweep_ = After(OwnershipClock::now(), options_.sweep_interval);
  if (unowned_.empty() && !FindAbandoned().ok()) return;
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
      RetryLeaves();
      garbage_.RemoveDue(/*all=*/false);
      kept = OwnershipClock::now();
    }
    if (!ending && OwnershipClock::now() >= next_sweep_) Sweep();
    lock.lock();
  }
}

// --- The lease ---

absl::Status S3Ownership::Renew(SteadyTime until) {
  const SteadyTime begin = OwnershipClock::now();
  const absl::StatusOr<bool> kept = lease_.Renew(until);
  if (report_) {
    report_({.kind = "lease",
             .duration = TimeBetween(begin, OwnershipClock::now()),
             .status = kept.status()});
  }
  RETURN_IF_ERROR(kept.status());
  if (!*kept) verify_ = true;
  return absl::OkStatus();
}

absl::Status S3Ownership::VerifyOwned() {
  verify_ = false;
  const std::vector<OwnedSession> all = sessions_.All();
  if (all.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<ListedObject>> listed = client_.ListAll(kSessionPrefix, {});
  absl::Status status = listed.status();
  std::map<std::string, std::string> etags;
  for (const ListedObject& object : listed.ok() ? *listed : std::vector<ListedObject>()) {
    etags[object.key] = object.etag;
  }
  for (const auto& [id, epoch, etag] : all) {
    if (!status.ok()) break;
    const auto found = etags.find(SessionKey(id));
    if (found != etags.end() && found->second == etag) continue;
    const absl::StatusOr<StoredObject> now = ReadSessionObject(client_, id, {});
    const bool gone = absl::IsNotFound(now.status()) || (now.ok() && now->object.removed);
    const bool lost =
        now.ok() && (now->object.owner != sessions_.server() || now->object.epoch != epoch);
    if (gone || lost) {
      sessions_.Lose(id, epoch);
    } else if (absl::IsUnavailable(now.status())) {
      status = now.status();
    }
  }
  if (!status.ok()) verify_ = true;
  return status;
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

absl::Status S3Ownership::KeepLease(SteadyTime& next) {
  if (OwnershipClock::now() >= next || !sure()) {
    RETURN_IF_ERROR(Renew());
    next = After(OwnershipClock::now(), options_.lease / 3);
  }
  if (verify_) RETURN_IF_ERROR(VerifyOwned());
  if (!verify_) sure_until_ = absl::ToInt64Nanoseconds(lease_.end());
  return absl::OkStatus();
}

void S3Ownership::LeaseLoop() {
  NameThisThread("lease");
  SteadyTime next = After(OwnershipClock::now(), options_.lease / 3);
  std::unique_lock lock(mutex_);
  while (!ending_ || !confirmations_.empty()) {
    const auto confirmations = std::exchange(confirmations_, {});
    lock.unlock();
    absl::Status status = KeepLease(next);
    for (const store::SessionStore::Done& done : confirmations) done(status);
    // Requests come after that: some may have waited for a server that slept.
    if (status.ok()) status = ListenOnce();
    lock.lock();
    const absl::Duration pause =
        status.ok() ? options_.listen_interval : std::min(options_.lease / 10, absl::Seconds(1));
    changed_.wait_for(lock, absl::ToChronoNanoseconds(pause),
                      [this] { return ending_ || !confirmations_.empty(); });
  }
}

}  // namespace ovq::s3
