// Ends requests: gives back what they hold, reports them, and answers their callers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/common/prefix_cache.h"
#include "server/engine/common/request.h"
#include "server/engine/scheduling/batch_planner.h"
#include "server/engine/sessions/session_core.h"

namespace ovq::engine {

// When a request ends, its memory is given back and its session is free again before its caller is
// told, so that whoever reads the last event can go on at once. A state that PrefixCache is to copy
// is given back within the same iteration, which is as good. Engine thread only.
class RequestFinisher {
 public:
  RequestFinisher(SessionCore& core, PrefixCache& prefixes, BatchPlanner& planner)
      : core_(core), config_(core.config), prefixes_(prefixes), planner_(planner) {}

  // Ends an answer, and with the last answer its request.
  void FinishAnswer(Request& request, RunningAnswer& answer, Finished finished);
  void FinishPrompt(Request& request);  // if nothing is to be generated
  void FinishScore(Request& request);

  // Answers a score or a session with the status. The stream of a cancelled request gets a Finished
  // for every answer that had none; every stream is closed with the status.
  void Fail(Request& request, FinishReason reason, absl::Status status);
  bool FailIfDead(Request& request, SteadyTime now);  // returns whether the request was dead
  // The model's output after `position` tokens is not a number.
  void FailNotANumber(Request& request, int64_t position);
  // The device had no memory for an iteration that has changed the request's states in part.
  void FailHalfway(Request& request, int64_t position, absl::Status status);

  // Copies the states of answers that have ended since the last call, whose callers need not wait
  // for it, to the PrefixCache. Called before an iteration ends.
  void KeepAnswers();
  // Whether any request has ended since the last call.
  bool ConsumeAnyEnded() { return std::exchange(any_ended_, false); }

 private:
  // Fails the request, from whose states nothing may go on.
  void FailDamaged(Request& request, int64_t position, std::string_view what, absl::Status status);
  // Ends the request: gives back what it holds, reports it, and calls `tell` when its caller may be
  // told, with DataLoss if what a turn has added is not on disk. last: the answer that ended last,
  // or null.
  void Release(Request& request, FinishReason reason, const RunningAnswer* last,
               StatusCallback tell);
  void ReleaseStates(Request& request, StatusCallback then);
  // Hands the state of an answer that ended by itself to KeepAnswers, within the bytes that an
  // iteration may copy.
  void MayKeepAnswer(Request& request);
  void SetEnded(Request& request);

  SessionCore& core_;
  const EngineConfig& config_;
  PrefixCache& prefixes_;
  BatchPlanner& planner_;
  bool any_ended_ = false;
  std::vector<std::shared_ptr<Request>> to_keep_;  // their states are still there
  size_t bytes_to_keep_ = 0;
};

}  // namespace ovq::engine
