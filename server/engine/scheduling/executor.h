// Computes one iteration of the model: builds the batch, runs it, and reads its results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "model/batch.h"
#include "model/logits_reader.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/state_pool.h"

namespace ovq::engine {

// A sequence in a batch: its tokens, what is wanted of their logits, and the results. What its
// spans and pointers refer to must outlive Executor::Execute and AcceptDrafts.
struct BatchSequence {
  struct Failure {
    absl::Status status;
    bool halfway = false;  // some layers have changed the state, which nobody may use any more
  };

  StateHandle* state = nullptr;
  std::span<const int32_t> tokens = {};   // tokens to consume, at least one; all are kept
  std::span<const int32_t> drafted = {};  // further tokens that may follow; needs one draw
  bool decoding = false;                  // the tokens are an answer's; otherwise a prompt's

  // Wanted is at most one of: draws from the logits of the last token, of which a single one also
  // draws after each drafted token; a score of every token with this many of the best alternatives;
  // whether the logits of the last token are finite.
  absl::InlinedVector<model::DrawRequest, 1> wants_draws = {};
  std::optional<int> wants_scores = {};
  std::span<const int32_t> next = {};  // for scores: the tokens that follow; the last may have none
  bool wants_check = false;

  // Results.
  std::optional<Failure> failure = {};                // if set, there are no others
  absl::InlinedVector<model::Sampled, 1> draws = {};  // [wants_draws], or [1 + drafted] of one
  std::vector<model::TokenScore> scores = {};         // [tokens]
  bool finite = true;

  // The executor's own: the places of the first draw or score in the reader, and the part of the
  // state that drafted tokens overwrite, saved so that rejected ones can be undone.
  int64_t row = 0;
  size_t place = 0;
  kernels::TokenRange undo_tokens = {};  // tokens that can be undone
  bool keeps_prefix = false;             // a suffix of them can be undone without the others
  std::byte* before = nullptr;           // device memory: the earlier content of their extents
};

// The sequences of one batch, all of one model variant.
struct BatchRun {
  std::vector<BatchSequence> sequences;
  IterationReport report = {};  // token counts; the caller adds the rest
  std::unique_ptr<kernels::ScratchScope> undo_memory = {};  // of BatchSequence::before
};

// Engine thread only.
class Executor {
 public:
  Executor(const EngineConfig& config, kernels::DeviceContext& context, StatePool& pool)
      : model_(config.model), context_(context), pool_(pool) {}

  // Consumes the sequences' tokens and moves their states on by them. A sequence for whose state
  // the system gives no memory fails and is left out; if the device has no memory for the batch,
  // all fail halfway. The state of a sequence with drafted tokens must go through AcceptDrafts
  // before anything else uses it.
  void Execute(BatchRun& run);
  // Keeps the consumed tokens and the first n_accepted drafted ones, and undoes the other drafted
  // ones: the state becomes the same as if they had not been in the batch. Fails
  // if the device has no memory for that; the state is of no use then. Execute has run for the
  // sequence.
  absl::Status AcceptDrafts(const BatchSequence& sequence, int32_t n_accepted);

 private:
  void Compute(BatchRun& run);
  void AddToBatch(BatchSequence& sequence, IterationReport& report);
  void ReadResults(BatchSequence& sequence) const;
  void SaveForUndo(BatchSequence& sequence, kernels::ScratchScope& memory);
  void Undo(const BatchSequence& sequence, int32_t n_accepted);

  const EngineModel& model_;
  kernels::DeviceContext& context_;
  StatePool& pool_;
  model::Batch batch_;
  model::LogitsReader reader_;
  std::vector<int32_t> tokens_;  // reused: of one sequence
};

}  // namespace ovq::engine
