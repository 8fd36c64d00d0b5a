// The values that pass between the Scheduler and the Executor: the work of one iteration, and its
// results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "model/logits_reader.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/state_pool.h"

namespace ovq::engine {

// Asks for a score of every consumed token: the log-probability of the token that follows it, and
// the best alternatives.
struct ScoreWanted {
  int top_logprobs = 0;
  std::span<const int32_t> next;  // tokens that follow each consumed one; the last may have none
};

// The sequences of one batch, all of one model variant. What the spans and pointers refer to must
// outlive Executor::Execute and AcceptDrafts.
struct StepInput {
  // Wants at most one of: draws, score, check.
  struct Sequence {
    StateHandle* state = nullptr;
    std::span<const int32_t> tokens = {};   // tokens to consume, at least one
    std::span<const int32_t> drafted = {};  // further tokens that may follow; needs one draw
    bool decoding = false;                  // the token was drawn; otherwise tokens of a prompt
    // Draws from the logits of the last token. One draw also draws after each drafted token.
    absl::InlinedVector<model::DrawRequest, 1> draws = {};
    std::optional<ScoreWanted> score = {};
    bool check = false;  // whether the logits of the last token are finite
  };
  std::vector<Sequence> sequences;
};

// The part of a state that drafted tokens overwrite, saved so that rejected ones can be undone.
struct DraftUndo {
  kernels::TokenRange tokens = {};  // tokens that can be undone
  bool keeps_prefix = false;        // a suffix of them can be undone without the others
  std::byte* before = nullptr;      // device memory: the earlier content of their extents
};

struct StepOutput {
  struct Failure {
    absl::Status status;
    bool halfway = false;  // some layers have changed the state, which nobody may use any more
  };
  struct Sequence {
    std::optional<Failure> failure = {};  // if set, there are no results
    absl::InlinedVector<model::Sampled, 1> draws =
        {};                                      // [draws], or [1 + drafted] for a single draw
    std::vector<model::TokenScore> scores = {};  // [tokens], if a score was wanted
    bool finite = true;                          // if a check was wanted
    std::optional<DraftUndo> undo = {};          // with drafted tokens
  };
  std::vector<Sequence> sequences;  // index as in StepInput
  IterationReport report;           // token counts; the caller adds the rest
  std::unique_ptr<kernels::ScratchScope>
      undo_memory;  // holds DraftUndo::before; null without drafts
};

}  // namespace ovq::engine
