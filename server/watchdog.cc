#include "server/watchdog.h"

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace ovq::server {
namespace {

absl::Duration CheckInterval(absl::Duration timeout, const ServiceNotifier& notifier) {
  absl::Duration interval = absl::Seconds(1);
  if (timeout > absl::ZeroDuration()) interval = std::min(interval, timeout / 4);
  // systemd recommends notifying at half of its interval or more often.
  if (notifier.watchdog()) interval = std::min(interval, *notifier.watchdog() / 3);
  return std::max(interval, absl::Milliseconds(10));
}

}  // namespace

HangDetector::Verdict HangDetector::Check(const std::optional<engine::IterationInProgress>& step,
                                          SteadyTime now) {
  const bool same = step && step->number == hanging_;
  if (same) return Verdict::kHangsStill;
  const bool ended = std::exchange(hanging_, 0) != 0;
  const bool late =
      timeout_ > absl::ZeroDuration() && step && TimeBetween(step->began, now) > timeout_;
  if (!late) return ended ? Verdict::kEnded : Verdict::kGood;
  hanging_ = step->number;
  return Verdict::kHangs;
}

Watchdog::Watchdog(absl::Duration timeout, const ServiceNotifier& notifier,
                   std::function<std::optional<engine::IterationInProgress>()> step,
                   Reports reports)
    : timeout_(timeout),
      interval_(CheckInterval(timeout, notifier)),
      notifier_(notifier),
      in_progress_(std::move(step)),
      reports_(std::move(reports)),
      thread_([this] { Run(); }) {}

Watchdog::~Watchdog() {
  ending_.Notify();
  thread_.join();
}

void Watchdog::Run() {
  NameThisThread("watchdog");
  using Verdict = HangDetector::Verdict;
  HangDetector judge(timeout_);
  do {
    const std::optional<engine::IterationInProgress> step = in_progress_();
    const SteadyTime now = Clock().steady();
    const Verdict verdict = judge.Check(step, now);
    if (verdict == Verdict::kHangs) reports_.hangs(*step, TimeBetween(step->began, now));
    if (verdict == Verdict::kEnded) reports_.ended();
    const bool alive = verdict == Verdict::kGood || verdict == Verdict::kEnded;
    if (alive && notifier_.watchdog()) notifier_.Alive();
  } while (!ending_.WaitForNotificationWithTimeout(interval_));
}

}  // namespace ovq::server
