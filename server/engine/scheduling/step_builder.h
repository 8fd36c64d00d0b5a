// Collects what the running requests want of the next iteration, and makes the Executor's input.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/engine/common/engine_config.h"
#include "server/engine/common/iteration_watch.h"
#include "server/engine/common/request.h"
#include "server/engine/scheduling/batch_planner.h"
#include "server/engine/scheduling/request_finisher.h"
#include "server/engine/scheduling/step_io.h"

namespace ovq::engine {

// Engine thread only.
class StepBuilder {
 public:
  // The sequence behind a candidate.
  struct Entry {
    Request* request;
    RunningAnswer* answer;  // null during prefill
    StateHandle* state;
    std::span<const int32_t> tokens;   // to consume next
    std::span<const int32_t> drafted;  // tokens that may follow
  };

  StepBuilder(const EngineConfig& config, RequestFinisher& finisher)
      : config_(config), finisher_(finisher) {}

  // Collects the candidates of all requests that have not ended. Ends a request whose next position
  // is out of bounds.
  void Collect(std::span<const std::shared_ptr<Request>> requests, SteadyTime now);
  // Brings the decoding candidates of the plan up to date for one more iteration. False: one cannot
  // go on as before, and Collect must follow.
  bool Refresh(std::span<const PlanItem> plan);

  // Both with the same indices.
  std::span<const BatchCandidate> candidates() const { return candidates_; }
  const Entry& entry(int candidate) const { return entries_[candidate]; }
  const IterationInProgress& work() const { return work_; }  // counts of the candidates

  // The Executor's input for a plan over the candidates, with the plan's indices.
  StepInput MakeInput(std::span<const PlanItem> plan) const;

 private:
  void AddPrompt(Request& request);
  void AddAnswers(Request& request, SteadyTime now);
  void AddShare(const Request& request, int top_logprobs, const StateHandle& state,
                BatchCandidate& candidate) const;
  absl::Status RefreshAnswer(Entry& entry, BatchCandidate& candidate) const;

  const EngineConfig& config_;
  RequestFinisher& finisher_;
  std::vector<BatchCandidate> candidates_;
  std::vector<Entry> entries_;  // [candidates]
  IterationInProgress work_;
};

}  // namespace ovq::engine
