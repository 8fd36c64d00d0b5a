// The running requests: what they bring to a step, what they make of its results, and how they end.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/admission.h"
#include "server/engine/engine_config.h"
#include "server/engine/executor.h"
#include "server/engine/prefix_cache.h"
#include "server/engine/request.h"
#include "server/engine/session_turns.h"
#include "server/engine/state_pool.h"

namespace ovq {

// When a request ends, memory is given back and the session is free again before anyone is told, so
// that whoever reads the last event can go on at once. Engine thread only.
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
        prefixes_(config.options.prefix_memory_bytes, pool) {}

  // A request that has its sequence.
  void Start(std::shared_ptr<Request> request);
  // A turn on a session that was claimed for it and whose state is in memory.
  void StartTurn(std::shared_ptr<Request> request);
  // One step of the requests and what follows from it. False: none could have a row.
  bool RunStep(Executor& step);

  // A score or a session is answered with the status. Streams of a request that was cancelled get a
  // Finished for every completion that had none, then all are closed with the status.
  void Fail(Request& request, FinishReason reason, absl::Status status);
  // Ends the call of the client that began last, of those whose memory is free at once. False
  // without one.
  bool GiveWay(const std::string& client);
  bool FailIfDead(Request& request, SteadyTime now);  // and says whether it was
  void FailDead(SteadyTime now);
  void FailAll(const absl::Status& status);
  void ForgetEnded();

  const std::vector<std::shared_ptr<Request>>& requests() const {
    return running_;
  }  // in order of admission
  void AddTo(EngineStats& stats) const;

 private:
  void TakePrefix(Request& request);
  void Choose(Executor& step, SteadyTime now);  // of all that the requests want
  void Collect(SteadyTime now);
  void CountWanted();
  void CollectDecoding(Request& request, SteadyTime now);
  void Share(const Request& request, StepSequence& sequence) const;
  // Whether the last choice of rows stands for one more step; makes its sequences what they are
  // now.
  bool StandsAgain(const Executor& step, SteadyTime now);
  absl::Status LookAgain(StepSequence& sequence) const;  // that decodes
  void Advance(const PlanItem& item, Executor& step, IterationReport& report);
  void AdvanceAnswer(const PlanItem& item, Executor& step, IterationReport& report);
  void FinishPrefill(Request& request, Executor* step);
  // Copies the states of prompts that have been read for their other completions, prompt by prompt
  // and not all in one turn: the first completion goes on with the prompt's own. True if there was
  // any to copy.
  bool CopySome();
  // All of its completions have a state: tells what was drawn for them.
  void BeginAnswers(Request& request);
  // The sequence's tokens from now on: the last is its pending one, the others are consumed.
  void Await(Request& request, Sequence& sequence, std::span<const int32_t> tokens);
  void TakeTokens(Request& request, Completion& completion, StreamEvent event);
  // The model's output after so many tokens was not a number.
  void FailDamaged(Request& request, int64_t position);
  // The device had no memory for all of a step, in which the request's states have moved on.
  void FailHalfway(Request& request, int64_t position, absl::Status status);
  void FailUnexecuted(const Executor& step);  // that could have no rows
  // What happened there is in the request's states, which nothing may go on from.
  void FailDamaged(Request& request, int64_t position, std::string_view what, absl::Status status);

  // Ends a completion, and with the last one its request.
  void FinishCompletion(Request& request, Completion& completion, Finished finished);
  void FinishPrompt(Request& request);  // when nothing is to be generated
  void FinishScore(Request& request);
  // Ends the request: gives back what it has, reports it, and calls `tell` when its caller may be
  // told, with DataLoss if what a turn has added is not on disk. last: the completion that ended
  // last, if any.
  void Release(Request& request, FinishReason reason, const Completion* last,
               StatusCallback tell);
  void SetEnded(Request& request);
  void ReleaseStates(Request& request, StatusCallback then);
  Usage MakeUsage(const Request& request, const Completion* completion) const;
  std::optional<double> DictionaryFill(const Request& request, const Completion* completion) const;

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  SessionTurns& sessions_;
  RandomSource& random_;
  IterationWatch& watch_;
  PrefixCache prefixes_;
  std::vector<std::shared_ptr<Request>> running_;
  int64_t next_order_ = 0;
  std::vector<StepSequence> sequences_;  // of the last choice of rows, as they were then
  std::vector<Request*> owners_;         // of these
  IterationInProgress wanted_;           // the rows of these
  bool chosen_ = false;     // from these, and no request or answer has begun or ended since
  bool copies_ = false;     // prompts may be there whose other completions want their states
  bool any_ended_ = false;  // of the requests
};

}  // namespace ovq
