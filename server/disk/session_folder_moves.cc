// What of the SessionFolder brings sessions from one server to another.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/thread_name.h"
#include "server/disk/session_folder.h"

namespace ovq {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr absl::Duration kLookAgain = absl::Milliseconds(2);
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);

}  // namespace

void SessionFolder::Take(const std::string& id, Taken done) {
  {
    std::lock_guard lock(mutex_);
    calls_.push_back({.id = id, .begin = SteadyClock::now(), .done = std::move(done)});
  }
  asks_->Wake();
}

void SessionFolder::OnAsked(std::function<void(const std::string&)> asked) {
  std::lock_guard lock(mutex_);
  asked_ = std::move(asked);
}

void SessionFolder::LetGo(const std::string& id) { locks_->Unlock(id); }

void SessionFolder::Refuse(const std::string& id) { asks_->Remove(id); }

void SessionFolder::MoveLoop() {
  NameThisThread("moves");
  std::vector<Call> waiting;
  for (;;) {
    const std::vector<std::string> asked =
        asks_->Wait(waiting.empty() ? absl::InfiniteDuration() : kLookAgain);
    std::unique_lock lock(mutex_);
    const std::function<void(const std::string&)> tell = asked_;
    std::ranges::move(std::exchange(calls_, {}), std::back_inserter(waiting));
    const bool ending = ending_;
    lock.unlock();
    for (const std::string& id : asked) {
      if (tell) tell(id);
    }
    std::erase_if(waiting, [&](Call& call) { return Answer(call, ending); });
    if (ending) return;
  }
}

bool SessionFolder::Answer(Call& call, bool ending) {
  absl::StatusOr<FoundSession> found = TakeFree(call.id);
  const auto now = SteadyClock::now();
  const bool asked = call.asked != SteadyClock::time_point();
  const absl::Status in_use =
      absl::FailedPreconditionError(absl::StrCat("session ", call.id, ": in use by another call"));
  if (absl::IsAlreadyExists(found.status())) {
    found = in_use;
  } else if (absl::IsUnavailable(found.status())) {
    if (asked && !asks_->IsAsked(call.id)) {
      found = in_use;
    } else if (!ending && now - call.begin < absl::ToChronoNanoseconds(options_.take_timeout)) {
      if (now - call.asked < absl::ToChronoNanoseconds(kAskAgain)) return false;
      call.asked = now;
      asks_->Ask(call.id);
      return false;
    }
  }
  if (asked) asks_->Remove(call.id);
  call.done(std::move(found));
  return true;
}

}  // namespace ovq
