#include "server/engine/engine_loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace ovq {
namespace {

EngineConfig Completed(EngineConfig config) {
  const EngineModel& model = config.model;
  EngineOptions& options = config.options;
  Check(model.forward != nullptr && model.layout != nullptr, "the engine has a model");
  // No cap exceeds the address range that the layout keeps for it.
  const int64_t limit = model.layout->limits().max_slot_cap;
  Check(model.default_slot_cap <= limit, "the model's own cap fits the layout");
  Check(options.max_batch_tokens > 0, "a step has room for a row");
  options.max_slot_cap = static_cast<int32_t>(std::min<int64_t>(options.max_slot_cap, limit));
  if (options.quotas == nullptr) options.quotas = std::make_shared<TenantQuotas>(options.clock);
  return config;
}

}  // namespace

EngineLoop::EngineLoop(EngineConfig config, std::unique_ptr<DeviceContext> context)
    : config_(Completed(std::move(config))),
      context_(std::move(context)),
      pool_(*config_.model.layout, config_.options.state_memory_bytes, *context_),
      random_(config_.options.seed),
      admission_(config_, pool_),
      sessions_(config_, pool_, admission_, random_),
      runner_(config_, pool_, admission_, sessions_, random_),
      step_(config_, *context_, pool_),
      session_slots_(SessionSlots(*config_.model.layout, config_.model.default_slot_cap,
                                  config_.options.state_memory_bytes,
                                  config_.options.max_sessions)) {
  PublishStats();
}

bool EngineLoop::Turn() {
  inbox_->RunAll();
  EndWhatIsOver(config_.options.clock.steady());
  while (std::shared_ptr<Job> job = admission_.Next()) runner_.Start(std::move(job));
  // A step may take long, or hang: what begins with it shows before it.
  if (runner_.jobs().size() != published_jobs_) PublishStats();
  const bool progressed = runner_.RunStep(step_);
  runner_.ForgetEnded();
  PublishStats();
  return progressed;
}

void EngineLoop::EndWhatIsOver(SteadyTime now) {
  sessions_.Expire(now);
  runner_.FailDead(now);
  const auto dead = [now](const Job& job) { return IsDead(job, now); };
  for (const std::shared_ptr<Job>& job : admission_.Remove(dead)) runner_.FailIfDead(*job, now);
}

void EngineLoop::EndAll(const absl::Status& status) {
  runner_.FailAll(status);
  for (const std::shared_ptr<Job>& job : admission_.Remove([](const Job&) { return true; })) {
    runner_.Fail(*job, FinishReason::kError, status);
  }
}

absl::Duration EngineLoop::TimeToNextEnd() const {
  SteadyTime next = std::min(sessions_.next_expiry(), admission_.next_deadline());
  for (const std::shared_ptr<Job>& job : runner_.jobs()) {
    if (!job->ended) next = std::min(next, job->deadline);
  }
  if (next == kNever) return absl::InfiniteDuration();
  return std::max(TimeBetween(config_.options.clock.steady(), next), absl::ZeroDuration());
}

void EngineLoop::PublishStats() {
  published_jobs_ = runner_.jobs().size();
  EngineStats stats;
  admission_.AddTo(stats);
  sessions_.AddTo(stats);
  runner_.AddTo(stats);
  stats.sessions_active = pool_.sessions() - stats.sessions_idle;
  stats.session_slots = session_slots_;
  stats.state_bytes_committed = pool_.committed_bytes();
  stats.state_bytes_reserved = pool_.reserved_bytes();
  stats.state_bytes_budget = pool_.budget_bytes();
  std::lock_guard lock(mutex_);
  stats_ = stats;
}

EngineStats EngineLoop::Stats() const {
  std::unique_lock lock(mutex_);
  EngineStats stats = stats_;
  lock.unlock();
  stats.gpu = context_->Gpu();
  return stats;
}

}  // namespace ovq
