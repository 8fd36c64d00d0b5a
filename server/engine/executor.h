// One step of the model: rows of many sequences, chosen, batched, computed and read.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "model/batch.h"
#include "model/logits_reader.h"
#include "server/engine/batch_planner.h"
#include "server/engine/engine_config.h"
#include "server/engine/state_pool.h"

namespace ovq {

class Executor {
 public:
  Executor(const EngineConfig& config, DeviceContext& context, StatePool& pool)
      : model_(config.model),
        max_rows_(config.options.max_batch_tokens),
        context_(context),
        pool_(pool),
        costs_(config.options.target_step_time) {}

  // Chooses rows of the sequences (PlanBatch), at most the options' max_batch_tokens, all in one
  // memory as a step is one model's: where there are several, they take turns.
  void Choose(std::span<const StepSequence> sequences, SteadyTime now);
  // Whose rows the last choice was, ids being indices into its sequences, if it may stand for one
  // more step, else empty. Of steps in which all read answers several have the same rows, for a
  // time that is short beside what their many sequences wait for their turns: to look through a
  // thousand takes as long as a small step, and a state that has its turn for a while stays in the
  // caches.
  std::span<const PlanItem> Standing(SteadyTime now) const;
  // Computes the chosen rows and moves the states on by them; `sequences` as chosen from, each that
  // has a row as it is now. Returns which got how many; empty if none could have one. A state that
  // the system gives no memory for has none and is in failed(); so are all, and none has any, if
  // the GPU has no memory for what the step computes. Their results follow in that order: NextDraw
  // for each draw, NextScore for each row, or NextCheck. Of a sequence with drafted rows NextDraw
  // gives the draw of its own row, then those of the drafted ones, and its state waits for
  // KeepRows.
  std::vector<PlanItem> Run(std::span<const StepSequence> sequences, IterationReport& report);

  struct Failed {
    int id;
    absl::Status status;
    bool halfway = false;  // some layers have moved its state on: it is of no more use
  };
  std::span<const Failed> failed() const { return failed_; }
  // Of a sequence with drafted rows, before anything else of its results is used: so many of its
  // rows stand, one at least, and its state is as if no others had been in the step; if the device
  // has no memory for that, it is of no more use.
  absl::Status KeepRows(const StepSequence& sequence, const PlanItem& item, int32_t n_rows);
  Sampled NextDraw() { return reader_.NextDraw(); }
  TokenScore NextScore() { return reader_.NextScore(); }
  bool NextCheck() { return reader_.NextCheck(); }
  void DropResults() {  // what scores asked for may be large
    reader_.Clear();
    undo_memory_.reset();
  }
  // How long the last step took, with what was made of its results.
  void Took(absl::Duration duration) { costs_.Observe(cost_, duration); }

 private:
  void Compute(std::span<const StepSequence> sequences, std::span<const PlanItem> plan,
               IterationReport& report);
  void Undo(const StepSequence& sequence, const PlanItem& item, int32_t n_rows);
  void Fill(const StepSequence& sequence, const PlanItem& item, IterationReport& report);
  const ModelVariant& MemoryOf(const StateHandle& state) const;
  void PrepareUndo(const StepSequence& sequence, const PlanItem& item);
  void CountUpdates(const StateHandle& state, int32_t n_rows, IterationReport& report) const;

  static constexpr auto kChoiceTime = std::chrono::microseconds(10);  // for each sequence
  static constexpr int kChoiceSteps = 32;                             // at most

  // Null for steps without a bound in time.
  const BatchCostModel* costs() const { return model_.weight_bytes > 0 ? &costs_ : nullptr; }

  const EngineModel& model_;
  const int32_t max_rows_;
  DeviceContext& context_;
  StatePool& pool_;
  BatchCostModel costs_;
  int64_t n_choices_ = 0;
  std::vector<PlanItem> choice_;
  int steps_left_ = 0;  // for which it may stand
  SteadyTime stands_until_;
  double cost_ = 1;            // of the last step's rows
  Batch batch_;                // of the present step, as is the rest
  std::vector<int32_t> rows_;  // of a sequence
  LogitsReader reader_;
  std::vector<Failed> failed_;

  // What drafted rows overwrite.
  struct Overwritten {
    int id;
    TokenRange tokens;  // that can be undone
    bool apart;         // the last of them alone
    std::byte* before;  // the device's memory: what their extents held
  };
  std::vector<Overwritten> undos_;
  std::optional<ScratchScope> undo_memory_;
};

// --- what the engine is doing at this moment, for those who look whether it stands still ---

struct IterationInProgress {
  int64_t number = 0;  // of the engine's turn, from 1
  SteadyTime began;
  // Running answers, and prompts with so many tokens still to be read.
  int answers = 0, prompts = 0;
  int64_t prompt_tokens = 0;
};

// Any thread.
class IterationWatch {
 public:
  void Begin(SteadyTime now) {
    std::lock_guard lock(mutex_);
    step_ = IterationInProgress{.number = ++turns_, .began = now};
  }
  // What the turn's step takes its rows from.
  void SetRows(int answers, int prompts, int64_t prompt_tokens) {
    std::lock_guard lock(mutex_);
    if (!step_) return;
    step_->answers = answers;
    step_->prompts = prompts;
    step_->prompt_tokens = prompt_tokens;
  }
  void End() {
    std::lock_guard lock(mutex_);
    step_.reset();
  }
  // None while the engine waits for work.
  std::optional<IterationInProgress> Now() const {
    std::lock_guard lock(mutex_);
    return step_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t turns_ = 0;
  std::optional<IterationInProgress> step_;
};

}  // namespace ovq
