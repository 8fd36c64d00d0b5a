#include "server/engine/common/host_time.h"

#include <algorithm>

#include "base/machine.h"

namespace ovq::engine {
namespace {

thread_local HostMeter* innermost_meter = nullptr;

}  // namespace

void HostTime::Charge(const std::string& client, absl::Duration used) {
  std::lock_guard lock(mutex_);
  AddUsed(client, used);
}

void HostTime::AddUsed(const std::string& client, absl::Duration used) {
  stats_.used += used;
  if (engine_runs_) used_[client] += used;
}

void HostTime::ChargeRunning(HostMeter& meter) {
  const absl::Duration now = ThreadTime(meter.clock_);
  AddUsed(meter.client_, now - meter.since_);
  meter.since_ = now;
}

bool HostTime::MayBegin(const std::string& client) const {
  std::lock_guard lock(mutex_);
  const auto found = owed_.find(client);
  return found == owed_.end() || found->second < kLittle;
}

void HostTime::CountHeld() {
  std::lock_guard lock(mutex_);
  ++stats_.calls_held;
}

HostStats HostTime::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

void HostTime::Settle(std::optional<absl::Duration> waited) {
  std::lock_guard lock(mutex_);
  for (HostMeter* const meter : running_) ChargeRunning(*meter);
  engine_runs_ = true;
  absl::Duration all;
  for (const auto& [client, used] : used_) all += used;
  const double part = !waited                      ? 1
                      : all > absl::ZeroDuration() ? std::min(absl::FDivDuration(*waited, all), 1.0)
                                                   : 0;
  for (const auto& [client, used] : used_) {
    AddDebt(client, used * part);
  }
  used_.clear();
}

void HostTime::Owe(const std::string& client, absl::Duration time) {
  std::lock_guard lock(mutex_);
  AddDebt(client, time);
}

void HostTime::AddDebt(const std::string& client, absl::Duration time) {
  if (time <= absl::ZeroDuration()) return;
  absl::Duration& owed = owed_[client];
  const absl::Duration more = std::min(time, kMostOwed - owed);
  owed += more;
  stats_.owed += more;
}

std::vector<HostDebt> HostTime::debts() const {
  std::vector<HostDebt> result;
  std::lock_guard lock(mutex_);
  for (const auto& [client, owed] : owed_) {
    result.push_back({.client = client, .seconds = absl::ToDoubleSeconds(owed)});
  }
  return result;
}

void HostTime::Pay(const std::vector<HostDebt>& debts) {
  std::lock_guard lock(mutex_);
  for (const HostDebt& debt : debts) {
    const auto found = owed_.find(debt.client);
    if (found == owed_.end()) continue;
    found->second -= absl::Seconds(debt.paid);
    if (found->second <= absl::Nanoseconds(1)) owed_.erase(found);  // what rounding leaves
  }
}

void HostTime::Forgive() {
  std::lock_guard lock(mutex_);
  engine_runs_ = false;
  owed_.clear();
  used_.clear();
}

HostMeter::HostMeter(HostTime& time, std::string client)
    : time_(time),
      client_(std::move(client)),
      outer_(innermost_meter),
      measures_(outer_ == nullptr || &outer_->time_ != &time_ || outer_->client_ != client_),
      clock_(ThreadClock()) {
  if (!measures_) return;
  if (outer_ != nullptr) outer_->Stop();
  Start();
  innermost_meter = this;
}

HostMeter::~HostMeter() {
  if (!measures_) return;
  Stop();
  innermost_meter = outer_;
  if (outer_ != nullptr) outer_->Start();
}

void HostMeter::Start() {
  since_ = ThreadTime(clock_);
  std::lock_guard lock(time_.mutex_);
  time_.running_.push_back(this);
}

void HostMeter::Stop() {
  std::lock_guard lock(time_.mutex_);
  time_.ChargeRunning(*this);
  std::erase(time_.running_, this);
}

}  // namespace ovq::engine
