// Collects what the running requests want of the next iteration, and makes a batch of it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "server/engine/common/engine_config.h"
#include "server/engine/common/iteration_watch.h"
#include "server/engine/common/request.h"
#include "server/engine/scheduling/batch_planner.h"
#include "server/engine/scheduling/executor.h"
#include "server/engine/scheduling/request_finisher.h"

namespace ovq::engine {

// Engine thread only.
class BatchBuilder {
 public:
  // planner: says what a row costs.
  BatchBuilder(const EngineConfig& config, RequestFinisher& finisher, const BatchPlanner& planner)
      : config_(config), finisher_(finisher), planner_(planner) {}

  // Collects the candidates of all requests that have not ended. Ends a request whose next position
  // is out of bounds.
  void Collect(std::span<const std::shared_ptr<Request>> requests, SteadyTime now);
  // Brings the decoding candidates of the plan up to date for one more iteration. False: one cannot
  // go on as before, and Collect must follow.
  bool Refresh(std::span<const PlanItem> plan);

  std::span<const BatchCandidate> candidates() const { return candidates_; }
  const IterationInProgress& work() const { return work_; }  // counts of the candidates

  // The sequences of a plan over the candidates, with the plan's indices.
  std::vector<BatchSequence> MakeSequences(std::span<const PlanItem> plan) const;

 private:
  void AddPrompt(Request& request);
  void AddAnswers(Request& request, SteadyTime now);
  BatchCandidate& AddCandidate(Request& request, StateHandle& state, const RowCounts& rows);
  static absl::Status RefreshAnswer(BatchCandidate& candidate);
  static void AddDecoding(const BatchCandidate& candidate, const PlanItem& item,
                          BatchSequence& sequence);

  const EngineConfig& config_;
  RequestFinisher& finisher_;
  const BatchPlanner& planner_;
  std::vector<BatchCandidate> candidates_;
  IterationInProgress work_;
};

}  // namespace ovq::engine
