// How jobs end: memory is given back and the session is free again before anyone is told, so that
// whoever reads the last event can go on at once. Engine thread only.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "server/engine/admission.h"
#include "server/engine/engine_config.h"
#include "server/engine/job.h"
#include "server/engine/session_store.h"
#include "server/engine/state_pool.h"

namespace ovq {

// It was cancelled, its session was deleted, or its deadline has passed.
bool IsDead(const Job& job, SteadyTime now);

class Finisher {
 public:
  Finisher(const EngineConfig& config, StatePool& pool, Admission& admission,
           SessionStore& sessions)
      : config_(config), pool_(pool), admission_(admission), sessions_(sessions) {}

  // Ends a completion, and with the last one its job.
  void FinishCompletion(Job& job, Completion& completion, Finished finished);
  // The prompt is consumed and nothing is to be generated.
  void FinishPrompt(Job& job);
  void FinishScore(Job& job);
  // A score or a session is answered with the status. Streams of a job that was cancelled get a
  // Finished for every completion that had none, then all are closed with the status.
  void Fail(Job& job, FinishReason reason, absl::Status status);
  // Fails a job that is dead, and says whether it was.
  bool FailIfDead(Job& job, SteadyTime now);

 private:
  Usage UsageOf(const Job& job, const Completion* completion) const;
  std::optional<double> DictionaryFill(const Job& job, const Completion* completion) const;
  void ReleaseStates(Job& job);
  // Gives back what the job has, and reports it; last: the completion that ended last, if any.
  void Release(Job& job, FinishReason reason, const Completion* last);
  void MarkEnded(Job& job);

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  SessionStore& sessions_;
};

}  // namespace ovq
