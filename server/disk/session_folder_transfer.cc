// SessionFolder's transfers: moves ownership of sessions from one server to another.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"
#include "server/disk/session_folder.h"

namespace ovq {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr absl::Duration kPollInterval = absl::Milliseconds(2);
constexpr absl::Duration kRequestInterval = absl::Milliseconds(100);

}  // namespace

void SessionFolder::AcquireOwnership(const std::string& id, OwnershipCallback done) {
  {
    std::lock_guard lock(mutex_);
    acquisitions_.push_back({.id = id, .begin = SteadyClock::now(), .done = std::move(done)});
  }
  transfer_requests_->Interrupt();
}

void SessionFolder::SetTransferListener(std::function<void(const std::string&)> asked) {
  std::lock_guard lock(mutex_);
  transfer_listener_ = std::move(asked);
}

void SessionFolder::ReleaseOwnership(const std::string& id) { locks_->Unlock(id); }

void SessionFolder::DeclineTransfer(const std::string& id) { transfer_requests_->Remove(id); }

void SessionFolder::TransferLoop() {
  NameThisThread("moves");
  std::vector<Acquisition> waiting;
  for (;;) {
    const std::vector<std::string> asked =
        transfer_requests_->Wait(waiting.empty() ? absl::InfiniteDuration() : kPollInterval);
    std::unique_lock lock(mutex_);
    const std::function<void(const std::string&)> tell = transfer_listener_;
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

bool SessionFolder::TryFinish(Acquisition& call, bool ending) {
  absl::StatusOr<FoundSession> found = TryAcquireOwnership(call.id);
  const auto now = SteadyClock::now();
  const bool asked = call.asked != SteadyClock::time_point();
  const absl::Status in_use =
      absl::FailedPreconditionError(absl::StrCat("session ", call.id, ": in use by another call"));
  if (absl::IsAlreadyExists(found.status())) {
    found = in_use;
  } else if (absl::IsUnavailable(found.status())) {
    if (asked && !transfer_requests_->IsTransferRequested(call.id)) {
      found = in_use;
    } else if (!ending &&
               now - call.begin < absl::ToChronoNanoseconds(options_.ownership_timeout)) {
      if (now - call.asked < absl::ToChronoNanoseconds(kRequestInterval)) return false;
      call.asked = now;
      transfer_requests_->RequestTransfer(call.id);
      return false;
    }
  }
  if (asked) transfer_requests_->Remove(call.id);
  call.done(std::move(found));
  return true;
}

}  // namespace ovq
