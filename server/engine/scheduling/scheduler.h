// The running requests: what runs in each iteration, and what follows from its results.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/common/iteration_watch.h"
#include "server/engine/common/matcher_cache.h"
#include "server/engine/common/prefix_cache.h"
#include "server/engine/common/request.h"
#include "server/engine/scheduling/batch_builder.h"
#include "server/engine/scheduling/batch_planner.h"
#include "server/engine/scheduling/executor.h"
#include "server/engine/scheduling/request_finisher.h"
#include "server/engine/sessions/session_core.h"

namespace ovq::engine {

// Engine thread only.
class Scheduler {
 public:
  Scheduler(SessionCore& core, IterationWatch& watch)
      : core_(core),
        config_(core.config),
        watch_(watch),
        prefixes_(config_.options.prefix_memory_bytes, core.pool),
        matchers_(config_.model.vocabulary, config_.options.constraint_memory_bytes,
                  config_.options.clock),
        planner_(config_),
        finisher_(core, prefixes_, planner_),
        builder_(config_, finisher_, planner_) {}

  // Measures what rows cost (EngineOptions::calibration). Before there are requests.
  void Calibrate(Executor& executor);
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
  absl::Status MakeAnswers(Request& request);
  // The answer that the call goes on with; null if it begins one. Sets the call's constraint.
  static const UnfinishedAnswer* FindUnfinished(const Request& request, GenerateRequest& call);
  // Starts from a cached state, where the prompt begins like an earlier one.
  void RestorePrefix(Request& request);
  std::vector<PlanItem> ChoosePlan(SteadyTime now);
  void ApplyPrefill(Request& request, BatchSequence& run);
  // Adds the forced tokens, then keeps the draws that equal the drafted tokens before them, up to
  // the one that ends the answer. Returns the number of accepted drafted tokens.
  int32_t ApplyDraws(Executor& executor, const BatchCandidate& candidate, BatchSequence& run);
  void FailFailed(std::span<const PlanItem> plan, const BatchRun& run);
  void MayCheckpoint(Request& request);
  // run: of the prompt's last token; null if there was none to consume.
  void FinishPrefill(Request& request, BatchSequence* run);
  // Copies the state of a prefilled prompt for its next answer that has none
  // (StateCopies::CopyOne), then begins the answers; the first one takes the prompt's own state.
  bool CopyPromptState(Request& request, size_t& bytes);
  // Emits the first tokens of answers, all of which have states. True: their forms take long, and
  // others are left for a later call.
  bool BeginAnswers(Request& request);
  // Appends tokens to the sequence: the last becomes its pending one, the others are consumed.
  void AppendTokens(Request& request, Sequence& sequence, std::span<const int32_t> tokens);
  void EmitTokens(Request& request, RunningAnswer& answer, StreamEvent event);

  SessionCore& core_;
  const EngineConfig& config_;
  IterationWatch& watch_;
  PrefixCache prefixes_;
  MatcherCache matchers_;
  BatchPlanner planner_;  // its choice is dropped when a request or answer begins or ends
  RequestFinisher finisher_;
  BatchBuilder builder_;
  std::vector<std::shared_ptr<Request>> running_;
  int64_t next_order_ = 0;
  absl::Status ending_;  // that of FailAll
};

}  // namespace ovq::engine
