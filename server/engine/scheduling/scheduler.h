// The running requests: what runs in each iteration, and what follows from its results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/common/admission.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/iteration_watch.h"
#include "server/engine/common/prefix_cache.h"
#include "server/engine/common/request.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/scheduling/batch_planner.h"
#include "server/engine/scheduling/executor.h"
#include "server/engine/scheduling/request_finisher.h"
#include "server/engine/scheduling/step_builder.h"
#include "server/engine/sessions/session_turns.h"

namespace ovq::engine {

// Engine thread only.
class Scheduler {
 public:
  Scheduler(const EngineConfig& config, StatePool& pool, Admission& admission,
            SessionTurns& sessions, RandomSource& random, IterationWatch& watch)
      : config_(config),
        pool_(pool),
        admission_(admission),
        sessions_(sessions),
        random_(random),
        watch_(watch),
        prefixes_(config.options.prefix_memory_bytes, pool),
        planner_(config),
        finisher_(config, pool, admission, sessions, prefixes_, planner_),
        builder_(config, finisher_) {}

  // Starts a request that has its sequence.
  void Start(std::shared_ptr<Request> request);
  // Starts a turn on the session that was claimed for it and whose state is resident.
  void StartTurn(std::shared_ptr<Request> request);
  // Runs one iteration of the requests and applies its results. False: no sequence could run.
  bool RunIteration(Executor& executor);

  void Fail(Request& request, FinishReason reason, absl::Status status) {
    finisher_.Fail(request, reason, std::move(status));
  }
  bool FailIfDead(Request& request, SteadyTime now) { return finisher_.FailIfDead(request, now); }
  void FailDead(SteadyTime now);
  void FailAll(const absl::Status& status);
  // Ends the client's call that began last, of the calls whose memory is free at once. False if
  // there is none.
  bool EvictFrom(const std::string& client);
  void RemoveEnded();

  const std::vector<std::shared_ptr<Request>>& requests() const {
    return running_;
  }  // in order of admission
  void AddTo(EngineStats& stats) const;

 private:
  void MakeAnswers(Request& request);
  // Starts from a cached state, where the prompt begins like an earlier one.
  void RestorePrefix(Request& request);
  std::vector<PlanItem> ChoosePlan(SteadyTime now);
  void ApplyPrefill(const StepInput::Sequence& input, Request& request,
                    StepOutput::Sequence& output);
  // Keeps the draws that equal the drafted tokens before them, up to the one that ends the answer.
  // Returns the number of accepted drafted tokens.
  int32_t ApplyDraws(Executor& executor, const StepInput::Sequence& input,
                     const StepBuilder::Entry& entry, StepOutput::Sequence& output);
  void FailFailed(std::span<const PlanItem> plan, const StepOutput& output);
  void MayCheckpoint(Request& request);
  // output: of the prompt's last token; null if there was none to consume.
  void FinishPrefill(Request& request, StepOutput::Sequence* output);
  // Copies the states of prefilled prompts for their other answers, prompt by prompt and not all in
  // one iteration; the first answer takes the prompt's own. True if there was any to copy.
  bool CopyPromptStates();
  // Emits the first token of all answers, once each has a state.
  void BeginAnswers(Request& request);
  // Appends tokens to the sequence: the last becomes its pending one, the others are consumed.
  void AppendTokens(Request& request, Sequence& sequence, std::span<const int32_t> tokens);
  void EmitTokens(Request& request, RunningAnswer& answer, StreamEvent event);

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  SessionTurns& sessions_;
  RandomSource& random_;
  IterationWatch& watch_;
  PrefixCache prefixes_;
  BatchPlanner planner_;  // its choice is dropped when a request or answer begins or ends
  RequestFinisher finisher_;
  StepBuilder builder_;
  std::vector<std::shared_ptr<Request>> running_;
  int64_t next_order_ = 0;
  bool copies_ = false;  // some prompts may wait for CopyPromptStates
};

}  // namespace ovq::engine
