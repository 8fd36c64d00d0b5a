// Computes one iteration of the model: builds the batch, runs it, and reads its results.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "model/batch.h"
#include "model/logits_reader.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/state_pool.h"
#include "server/engine/scheduling/step_io.h"

namespace ovq::engine {

// Engine thread only.
class Executor {
 public:
  Executor(const EngineConfig& config, kernels::DeviceContext& context, StatePool& pool)
      : model_(config.model), context_(context), pool_(pool) {}

  // Consumes the sequences' tokens and moves their states on by them. A sequence for whose state
  // the system gives no memory fails and is left out; if the device has no memory for the batch,
  // all fail halfway. The state of a sequence with drafted tokens must go through AcceptDrafts
  // before anything else uses it.
  StepOutput Execute(const StepInput& input);
  // Keeps the consumed token and the first n_tokens - 1 drafted ones (n_tokens >= 1), and undoes
  // the other drafted ones: the state becomes the same as if they had not been in the batch. Fails
  // if the device has no memory for that; the state is of no use then. `output` is the result of
  // Execute for this sequence.
  absl::Status AcceptDrafts(const StepInput::Sequence& sequence, const StepOutput::Sequence& output,
                            int32_t n_tokens);

 private:
  // Indices of what a sequence wants in the reader.
  struct Place {
    int64_t row = 0;
    size_t first_draw = 0, first_score = 0;
  };

  void Compute(const StepInput& input, StepOutput& output);
  Place AddToBatch(const StepInput::Sequence& sequence, IterationReport& report);
  void ReadResults(const StepInput::Sequence& sequence, const Place& place,
                   StepOutput::Sequence& output) const;
  const ModelVariant& VariantFor(const StateHandle& state) const;
  DraftUndo SaveForUndo(const StepInput::Sequence& sequence, kernels::ScratchScope& memory);
  void Undo(const StepInput::Sequence& sequence, const DraftUndo& undo, int32_t n_tokens);

  const EngineModel& model_;
  kernels::DeviceContext& context_;
  StatePool& pool_;
  model::Batch batch_;
  model::LogitsReader reader_;
  std::vector<int32_t> tokens_;  // reused: of one sequence
  std::vector<Place> places_;    // reused: [sequences]
};

}  // namespace ovq::engine
