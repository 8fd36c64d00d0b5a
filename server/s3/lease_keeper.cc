#include "server/s3/lease_keeper.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_name.h"

namespace ovq::s3 {
namespace {

using KeeperClock = std::chrono::steady_clock;

}  // namespace

LeaseKeeper::LeaseKeeper(S3Client& client, OwnedSessions& sessions, const S3StoreOptions& options,
                         Report report, std::function<absl::Status()> listen)
    : client_(client),
      sessions_(sessions),
      options_(options),
      report_(std::move(report)),
      listen_(std::move(listen)),
      lease_(client, sessions.server(), options.lease) {}

absl::Status LeaseKeeper::Start() {
  RETURN_IF_ERROR(Renew(After(KeeperClock::now(), options_.patience)));
  verify_ = false;
  sure_until_ = absl::ToInt64Nanoseconds(lease_.end());
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void LeaseKeeper::Stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool LeaseKeeper::sure() const { return absl::ToInt64Nanoseconds(BootTime()) < sure_until_; }

void LeaseKeeper::Confirm(store::SessionStore::Done done) {
  {
    std::lock_guard lock(mutex_);
    confirmations_.push_back(std::move(done));
  }
  changed_.notify_all();
}

absl::Status LeaseKeeper::Renew(SteadyTime until) {
  const SteadyTime begin = KeeperClock::now();
  const absl::StatusOr<bool> kept = lease_.Renew(until);
  if (report_) {
    report_({.kind = "lease",
             .duration = TimeBetween(begin, KeeperClock::now()),
             .status = kept.status()});
  }
  RETURN_IF_ERROR(kept.status());
  verify_ = verify_ || !*kept;
  return absl::OkStatus();
}

absl::Status LeaseKeeper::VerifyOwned() {
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

absl::Status LeaseKeeper::Keep(SteadyTime& next) {
  if (KeeperClock::now() >= next || !sure()) {
    RETURN_IF_ERROR(Renew(/*until=*/{}));
    next = After(KeeperClock::now(), options_.lease / 3);
  }
  if (verify_) RETURN_IF_ERROR(VerifyOwned());
  sure_until_ = absl::ToInt64Nanoseconds(lease_.end());
  return absl::OkStatus();
}

void LeaseKeeper::Loop() {
  NameThisThread("lease");
  SteadyTime next = After(KeeperClock::now(), options_.lease / 3);
  std::unique_lock lock(mutex_);
  while (!ending_ || !confirmations_.empty()) {
    const auto confirmations = std::exchange(confirmations_, {});
    lock.unlock();
    absl::Status status = Keep(next);
    for (const store::SessionStore::Done& done : confirmations) done(status);
    // Requests come after that: some may have waited for a server that slept.
    if (status.ok()) status = listen_();
    lock.lock();
    const absl::Duration pause =
        status.ok() ? options_.listen_interval : std::min(options_.lease / 10, absl::Seconds(1));
    changed_.wait_for(lock, absl::ToChronoNanoseconds(pause),
                      [this] { return ending_ || !confirmations_.empty(); });
  }
}

}  // namespace ovq::s3
