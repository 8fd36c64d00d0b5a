// The parts that the engine thread drives, and one turn of its loop.
#pragma once

#include <memory>
#include <mutex>

#include "kernels/common/device.h"
#include "server/engine/admission.h"
#include "server/engine/engine_config.h"
#include "server/engine/inbox.h"
#include "server/engine/runner.h"
#include "server/engine/session_store.h"
#include "server/engine/state_pool.h"
#include "server/engine/step.h"

namespace ovq {

class EngineLoop {
 public:
  // Fills in what the options leave to the engine.
  EngineLoop(EngineConfig config, std::unique_ptr<DeviceContext> context);

  // --- any thread ---
  const EngineConfig& config() const { return config_; }
  const std::shared_ptr<Inbox>& inbox() { return inbox_; }
  Admission& admission() { return admission_; }  // its first half, as of the next
  SessionStore& sessions() { return sessions_; }
  EngineStats Stats() const;  // of the last step boundary

  // --- engine thread ---
  void BindThread() { context_->BindThread(); }  // first of all
  // What was posted, what the time has ended, who is let in, and one step. False: no row could run.
  bool Turn();
  absl::Duration TimeToNextEnd() const;  // until a deadline passes or a session expires
  void EndAll(const absl::Status& status);
  Runner& runner() { return runner_; }

 private:
  void EndWhatIsOver(SteadyTime now);
  void PublishStats();

  const EngineConfig config_;
  const std::unique_ptr<DeviceContext> context_;
  StatePool pool_;
  RandomSource random_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  Admission admission_;
  SessionStore sessions_;
  Runner runner_;
  Step step_;
  const int session_slots_;
  size_t published_jobs_ = 0;  // running ones, in stats_

  mutable std::mutex mutex_;
  EngineStats stats_;  // guarded by mutex_
};

}  // namespace ovq
