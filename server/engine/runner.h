// The running jobs: what they bring to a step, and what they make of its results. Engine thread
// only.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/admission.h"
#include "server/engine/engine_config.h"
#include "server/engine/finisher.h"
#include "server/engine/job.h"
#include "server/engine/session_store.h"
#include "server/engine/step.h"

namespace ovq {

class Runner {
 public:
  Runner(const EngineConfig& config, Admission& admission, SessionStore& sessions,
         Finisher& finisher, RandomSource& random)
      : config_(config),
        admission_(admission),
        sessions_(sessions),
        finisher_(finisher),
        random_(random) {}

  // A job that has its sequence.
  void Start(std::shared_ptr<Job> job);
  // A turn on a session that was claimed for it.
  void StartTurn(std::shared_ptr<Job> job);
  // One step of the jobs and what follows from it. False: none could have a row.
  bool RunStep(Step& step);

  void FailDead(SteadyTime now);
  void FailAll(const absl::Status& status);
  void ForgetEnded();

  const std::vector<std::shared_ptr<Job>>& jobs() const { return jobs_; }  // in order of admission
  void AddTo(EngineStats& stats) const;

 private:
  void Collect();
  void CollectDecoding(Job& job);
  void Advance(const PlanItem& item, Step& step);
  void FinishPrefill(Job& job, Step* step);
  void StartCompletions(Job& job);
  void TakeDraw(Job& job, Completion& completion, Sampled drawn);

  const EngineConfig& config_;
  Admission& admission_;
  SessionStore& sessions_;
  Finisher& finisher_;
  RandomSource& random_;
  std::vector<std::shared_ptr<Job>> jobs_;
  int64_t next_order_ = 0;
  std::vector<StepSequence> sequences_;  // of the present step
  std::vector<Job*> owners_;             // of these
};

}  // namespace ovq
