// One step of the model: rows of many sequences, chosen, batched, computed and read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/step_batch.h"
#include "model/step_reader.h"
#include "server/engine/answer.h"
#include "server/engine/engine_config.h"
#include "server/engine/state_pool.h"

namespace ovq {

// What a sequence brings to a step.
struct StepSequence {
  StateHandle* state = nullptr;
  std::span<const int32_t> tokens = {};  // to consume next, at least one
  bool decoding = false;                 // its one token was drawn; else tokens of a prompt
  bool paused = false;                   // its reader is behind: no row in this step
  int64_t order = 0;                     // of admission
  // Each draws a token from the logits of the last of the tokens.
  std::span<const std::unique_ptr<Completion>> draws = {};
  // Every token's row is scored: the log-probability of the token after it, if there is one, and of
  // so many best.
  std::optional<int> score_top = {};
};

struct PlanItem {
  int id;  // of the sequence: its index
  int32_t n_rows;
  bool operator==(const PlanItem&) const = default;
};

// Decoding never takes the last max_rows / kPrefillShare rows of a step (at least one of several)
// while something prefills, so that a server full of long answers still takes in new prompts.
inline constexpr int32_t kPrefillShare = 8;

// One row for every decoding sequence (when there are more than rows for them, those waiting
// longest, see `turn`), then parts of prompts under what is left of max_rows, oldest first. `turn`
// rotates decode rows, so that none starves; pass the step number. A pure function.
std::vector<PlanItem> PlanStep(std::span<const StepSequence> sequences, int32_t max_rows,
                               int64_t turn);

class Step {
 public:
  Step(const EngineConfig& config, DeviceContext& context, StatePool& pool)
      : model_(config.model),
        max_rows_(config.options.max_batch_tokens),
        context_(context),
        pool_(pool) {}

  // Chooses rows of the sequences, at most the options' max_batch_tokens, all in one memory as a
  // step is one model's: where there are several, they take turns. Moves the states on by them.
  // Returns which got how many, ids being indices into `sequences`; empty if none could have one.
  // Their results follow in that order: NextDraw for each draw, or NextScore for each row.
  std::vector<PlanItem> Run(std::span<const StepSequence> sequences, StepReport& report);

  Sampled NextDraw() { return reader_.NextDraw(); }
  RowScore NextScore() { return reader_.NextScore(); }
  void DropResults() { reader_.Clear(); }  // what scores asked for may be large

 private:
  std::vector<PlanItem> Plan(std::span<const StepSequence> sequences) const;
  void Fill(const StepSequence& sequence, int32_t n_rows, StepReport& report);
  void CountUpdates(const StateHandle& state, int32_t n_rows, StepReport& report) const;

  const EngineModel& model_;
  const int32_t max_rows_;
  DeviceContext& context_;
  StatePool& pool_;
  int64_t steps_ = 0;
  StepBatch batch_;  // of the present step, as is the rest
  StepReader reader_;
};

}  // namespace ovq
