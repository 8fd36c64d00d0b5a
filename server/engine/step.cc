#include "server/engine/step.h"

#include <algorithm>
#include <utility>

namespace ovq {

std::vector<PlanItem> Step::Plan(std::span<const StepSequence> sequences) const {
  std::vector<const StateLayout*> memories;  // of those that can have rows
  for (const StepSequence& sequence : sequences) {
    const StateLayout* memory = sequence.state->layout;
    if (!sequence.paused && std::ranges::count(memories, memory) == 0) memories.push_back(memory);
  }
  if (memories.empty()) return {};
  const auto n = static_cast<int64_t>(memories.size());
  return PlanStep(sequences, max_rows_, steps_ / n, model_.weight_bytes > 0 ? &costs_ : nullptr,
                  memories[static_cast<size_t>(steps_ % n)], static_cast<int>(n));
}

std::vector<PlanItem> Step::Run(std::span<const StepSequence> sequences, StepReport& report) {
  std::vector<PlanItem> plan = Plan(sequences);
  failed_.clear();
  std::erase_if(plan, [&](const PlanItem& item) {
    StateHandle& state = *sequences[static_cast<size_t>(item.id)].state;
    absl::Status status = pool_.Commit(state, state.position + item.n_rows);
    if (!status.ok()) failed_.push_back({item.id, std::move(status)});
    return !failed_.empty() && failed_.back().id == item.id;
  });
  if (plan.empty()) return plan;
  batch_.Clear();
  reader_.Clear();
  cost_ = 0;
  for (const PlanItem& item : plan) {
    Fill(sequences[item.id], item.n_rows, report);
    cost_ += item.n_rows * sequences[item.id].row_cost;
  }

  ScratchScope scratch(context_);
  const StateLayout* layout = sequences[static_cast<size_t>(plan.front().id)].state->layout;
  const auto memory = std::ranges::find(model_.memories, layout, &EngineMemory::layout);
  TensorView logits = memory->forward(batch_, context_, scratch);
  logits.shape = {static_cast<int64_t>(batch_.logit_rows.size()), model_.vocab_size};
  reader_.Read(context_, logits);  // the step's only wait for the device
  ++steps_;
  return plan;
}

void Step::Fill(const StepSequence& sequence, int32_t n_rows, StepReport& report) {
  StateHandle& state = *sequence.state;
  const int64_t start = state.position;
  const auto first_row = static_cast<int64_t>(batch_.logit_rows.size());
  const bool whole = static_cast<size_t>(n_rows) == sequence.tokens.size();
  const bool draws = whole && !sequence.draws.empty(), checks = whole && sequence.checked;
  CountUpdates(state, n_rows, report);
  (sequence.decoding ? report.decode_rows : report.prefill_rows) += n_rows;
  pool_.Grow(state, start + n_rows);
  batch_.Add(sequence.tokens.first(static_cast<size_t>(n_rows)), start, state.slot_cap, state.base,
             sequence.score_top ? n_rows
             : draws || checks  ? 1
                                : 0);
  if (sequence.score_top) {
    for (int32_t i = 0; i < n_rows; ++i) {
      const size_t next = static_cast<size_t>(i) + 1;
      const bool known = next < sequence.tokens.size();
      reader_.WantScore(first_row + i, known ? std::optional(sequence.tokens[next]) : std::nullopt,
                        *sequence.score_top);
    }
  } else if (checks) {
    reader_.WantCheck(first_row);
  } else if (draws) {
    for (const std::unique_ptr<Completion>& completion : sequence.draws) {
      completion->WantDraw(reader_, first_row, start + n_rows);
    }
  }
}

// What n_rows more do to a dictionary follows from the positions: a chunk's update takes up all its
// tokens, as many of them as new centroids as the law of growth says.
void Step::CountUpdates(const StateHandle& state, int32_t n_rows, StepReport& report) const {
  const StateLayout& layout = *state.layout;
  const int64_t end = state.position + n_rows;
  const int64_t tokens = layout.DictionaryTokens(end) - layout.DictionaryTokens(state.position);
  if (tokens == 0) return;
  const int64_t inserts =
      layout.LiveSlotsAt(end, state.slot_cap) - layout.LiveSlotsAt(state.position, state.slot_cap);
  report.dictionary_inserts += inserts;
  report.dictionary_merges += tokens - inserts;
}

}  // namespace ovq
