#include "server/s3/lease_keeper.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/store/work_threads.h"

namespace ovq::s3 {
LeaseKeeper::LeaseKeeper(S3Client& client, OwnedSessions& sessions, const S3StoreOptions& options,
                         store::Report report, Touch touch, std::function<absl::Status()> listen)
    : sessions_(sessions),
      options_(options),
      report_(std::move(report)),
      touch_(std::move(touch)),
      listen_(std::move(listen)),
      lease_(client, sessions.server(), options.lease) {}

absl::Status LeaseKeeper::Start() {
  RETURN_IF_ERROR(Renew(After(SteadyClock::now(), options_.patience)));
  state_ = State::kSure;
  sure_until_ = absl::ToInt64Nanoseconds(lease_.end());
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void LeaseKeeper::Stop() { store::EndThread(thread_, mutex_, changed_, ending_); }

bool LeaseKeeper::sure() const { return absl::ToInt64Nanoseconds(BootTime()) < sure_until_; }

void LeaseKeeper::Confirm(store::SessionStore::Done done) {
  {
    std::lock_guard lock(mutex_);
    confirmations_.push_back(std::move(done));
  }
  changed_.notify_all();
}

absl::Status LeaseKeeper::Renew(SteadyTime until) {
  const SteadyTime begin = SteadyClock::now();
  const absl::StatusOr<bool> kept = lease_.Renew(until);
  store::ReportEnd(report_, "lease", begin, kept.status());
  RETURN_IF_ERROR(kept.status());
  if (!*kept) {
    ++lapses_;
    state_ = State::kLost;
  }
  return absl::OkStatus();
}

void LeaseKeeper::TouchAll() {
  const std::vector<std::string> ids = sessions_.All();
  {
    std::lock_guard lock(mutex_);
    touching_ = ids.size();
  }
  for (const std::string& id : ids) {
    touch_(id, [this, id](const absl::Status& status) {
      // Damaged, or of another version: it is nobody's to answer for.
      const bool bad = absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
      if (bad) sessions_.Lose(id, sessions_.Term(id));
      const bool lost = bad || absl::IsAborted(status) || absl::IsUnknown(status);
      std::lock_guard lock(mutex_);
      if (!status.ok() && !lost) touch_failure_ = status;
      touched_ = --touching_ == 0;
      if (touched_) changed_.notify_all();
    });
  }
}

absl::StatusOr<bool> LeaseKeeper::Touched() {
  std::lock_guard lock(mutex_);
  if (touching_ > 0) return false;
  RETURN_IF_ERROR(std::exchange(touch_failure_, absl::OkStatus()));
  return true;
}

absl::Status LeaseKeeper::Keep(SteadyTime& next, bool confirming) {
  if (SteadyClock::now() >= next || (state_ == State::kSure && !sure())) {
    const SteadyTime now = SteadyClock::now();
    RETURN_IF_ERROR(Renew(confirming ? After(now, options_.reply_timeout) : SteadyTime{}));
    next = After(SteadyClock::now(), options_.lease / 3);
  }
  if (state_ == State::kLost) {
    ASSIGN_OR_RETURN(const bool idle, Touched());
    if (!idle) return absl::OkStatus();
    // The lease is there already: whoever reads a session from now on finds this server alive.
    TouchAll();
    state_ = State::kTouching;
  }
  if (state_ == State::kTouching) {
    const absl::StatusOr<bool> all = Touched();
    if (!all.ok()) state_ = State::kLost;
    RETURN_IF_ERROR(all.status());
    if (*all) state_ = State::kSure;
  }
  if (state_ == State::kSure) sure_until_ = absl::ToInt64Nanoseconds(lease_.end());
  return absl::OkStatus();
}

void LeaseKeeper::Loop() {
  NameThisThread("lease");
  SteadyTime next = After(SteadyClock::now(), options_.lease / 3);
  std::vector<store::SessionStore::Done> waiting;
  std::unique_lock lock(mutex_);
  while (!ending_) {
    std::ranges::move(std::exchange(confirmations_, {}), std::back_inserter(waiting));
    lock.unlock();
    absl::Status status = Keep(next, !waiting.empty());
    if (!status.ok() || (state_ == State::kSure && sure())) {
      for (const store::SessionStore::Done& done : std::exchange(waiting, {})) done(status);
    }
    // Requests come after that: some may have waited for a server that slept.
    if (status.ok() && state_ == State::kSure) status = listen_();
    lock.lock();
    const absl::Duration pause =
        status.ok() ? options_.listen_interval : std::min(options_.lease / 10, absl::Seconds(1));
    changed_.wait_for(lock, absl::ToChronoNanoseconds(pause),
                      [this] { return ending_ || touched_ || !confirmations_.empty(); });
    touched_ = false;
  }
  std::ranges::move(std::exchange(confirmations_, {}), std::back_inserter(waiting));
  lock.unlock();
  for (const store::SessionStore::Done& done : waiting) {
    done(absl::UnavailableError("the server ends"));
  }
}

}  // namespace ovq::s3
