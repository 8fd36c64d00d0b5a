#include "server/engine/executor.h"

#include <algorithm>
#include <utility>

#include "kernels/common/device_memory.h"

namespace ovq {
namespace {

size_t TotalBytes(std::span<const StateExtent> extents) {
  size_t bytes = 0;
  for (const StateExtent& extent : extents) bytes += extent.total_bytes();
  return bytes;
}

}  // namespace

void Executor::Choose(std::span<const StepSequence> sequences, SteadyTime now) {
  std::vector<const StateLayout*> variants;  // of those that can have rows
  for (const StepSequence& sequence : sequences) {
    const StateLayout* memory = sequence.state->layout;
    if (!sequence.paused && std::ranges::count(variants, memory) == 0) variants.push_back(memory);
  }
  choice_.clear();
  steps_left_ = 0;
  if (variants.empty()) return;
  const auto n = static_cast<int64_t>(variants.size());
  choice_ = PlanBatch(sequences, max_rows_, n_choices_ / n, costs(), variants[n_choices_ % n],
                      static_cast<int>(n));
  ++n_choices_;
  const bool may_stand = n == 1 && std::ranges::all_of(choice_, [&](const PlanItem& item) {
                           return sequences[item.id].decoding;
                         });
  if (!may_stand) return;
  steps_left_ = kChoiceSteps;
  stands_until_ = now + kChoiceTime * std::ssize(sequences);
}

std::span<const PlanItem> Executor::Standing(SteadyTime now) const {
  if (steps_left_ == 0 || !failed_.empty() || now >= stands_until_) return {};
  return choice_;
}

std::vector<PlanItem> Executor::Run(std::span<const StepSequence> sequences,
                                    IterationReport& report) {
  std::vector<PlanItem> plan = choice_;
  if (steps_left_ > 0) --steps_left_;
  failed_.clear();
  std::erase_if(plan, [&](const PlanItem& item) {
    StateHandle& state = *sequences[item.id].state;
    absl::Status status = pool_.Commit(state, state.position + item.n_rows);
    if (!status.ok()) failed_.push_back({item.id, std::move(status)});
    return !failed_.empty() && failed_.back().id == item.id;
  });
  if (plan.empty()) return plan;
  PlanDrafts(sequences, max_rows_, costs(), plan);
  absl::Status computed = CatchOutOfMemory([&] { Compute(sequences, plan, report); });
  if (!computed.ok()) {
    context_.Synchronize();  // what was launched still reads what was staged for it
    DropResults();
    for (const PlanItem& item : plan) {
      failed_.push_back({.id = item.id, .status = computed, .halfway = true});
    }
    return {};
  }
  return plan;
}

void Executor::Compute(std::span<const StepSequence> sequences, std::span<const PlanItem> plan,
                       IterationReport& report) {
  batch_.Clear();
  reader_.Clear();
  undos_.clear();
  undo_memory_.emplace(context_);
  cost_ = 0;
  for (const PlanItem& item : plan) {
    const StepSequence& sequence = sequences[item.id];
    if (item.n_drafted > 0) PrepareUndo(sequence, item);
    Fill(sequence, item, report);
    cost_ += (item.n_rows + item.n_drafted) * sequence.row_cost;
  }

  ScratchScope scratch(context_);
  const StateHandle& first = *sequences[plan.front().id].state;
  TensorView logits = MemoryOf(first).forward(batch_, context_, scratch);
  logits.shape = {static_cast<int64_t>(batch_.logits_indices.size()), model_.vocab_size};
  reader_.Read(context_, logits);  // the step's only wait for the device
}

const ModelVariant& Executor::MemoryOf(const StateHandle& state) const {
  return *std::ranges::find(model_.variants, state.layout, &ModelVariant::layout);
}

// Its own row stands in any case: where rows are undone one by one, it needs no copy.
void Executor::PrepareUndo(const StepSequence& sequence, const PlanItem& item) {
  const StateHandle& state = *sequence.state;
  const ModelVariant& memory = MemoryOf(state);
  TokenRange tokens = {state.position, state.position + 1 + item.n_drafted, state.slot_cap};
  const bool apart = memory.can_undo_suffix(tokens);
  if (apart) ++tokens.begin;
  const std::vector<StateExtent> extents = memory.undo_extents(tokens);
  std::byte* const before = undo_memory_->Allocate<std::byte>(TotalBytes(extents));
  pool_.Pack(state, extents, before);
  undos_.push_back({item.id, tokens, apart, before});
}

absl::Status Executor::KeepRows(const StepSequence& sequence, const PlanItem& item,
                                int32_t n_rows) {
  absl::Status undone = CatchOutOfMemory([&] { Undo(sequence, item, n_rows); });
  if (undone.ok()) pool_.Grow(*sequence.state, sequence.state->position - 1 + n_rows);
  return undone;
}

void Executor::Undo(const StepSequence& sequence, const PlanItem& item, int32_t n_rows) {
  StateHandle& state = *sequence.state;
  const int64_t start = state.position - 1, kept = start + n_rows;
  const Overwritten& undo = *std::ranges::find(undos_, item.id, &Overwritten::id);
  const ModelVariant& memory = MemoryOf(state);
  if (kept >= undo.tokens.end) return;
  ScratchScope scratch(context_);
  // What stands of these tokens is written again: over what there was before them, if need be by
  // reading them once more.
  const TokenRange again = {undo.tokens.begin, kept, state.slot_cap};
  std::vector<StateExtent> standing;
  if (undo.apart && kept > again.begin) standing = memory.undo_extents(again);
  std::byte* const bytes = scratch.Allocate<std::byte>(TotalBytes(standing));
  pool_.Pack(state, standing, bytes);
  pool_.Unpack(state, memory.undo_extents(undo.tokens), undo.before);
  pool_.Unpack(state, standing, bytes);
  if (undo.apart) return;
  std::vector<int32_t> tokens = {sequence.tokens.front()};
  const auto guessed = sequence.guess.tokens.first(static_cast<size_t>(n_rows - 1));
  tokens.insert(tokens.end(), guessed.begin(), guessed.end());
  batch_.Clear();
  batch_.Add(tokens, start, state.slot_cap, state.base, /*n_logits=*/0);
  memory.forward(batch_, context_, scratch);
}

void Executor::Fill(const StepSequence& sequence, const PlanItem& item, IterationReport& report) {
  const int32_t n_rows = item.n_rows;
  StateHandle& state = *sequence.state;
  const int64_t start = state.position;
  const auto first_row = static_cast<int64_t>(batch_.logits_indices.size());
  const bool whole = static_cast<size_t>(n_rows) == sequence.tokens.size();
  const bool draws = whole && !sequence.draws.empty(), checks = whole && sequence.checked;
  CountUpdates(state, n_rows, report);
  (sequence.decoding ? report.decode_tokens : report.prefill_tokens) += n_rows;
  report.drafted_tokens += item.n_drafted;
  pool_.Grow(state, start + n_rows);
  const auto guessed = sequence.guess.tokens.first(static_cast<size_t>(item.n_drafted));
  rows_.assign(sequence.tokens.begin(), sequence.tokens.begin() + n_rows);
  rows_.insert(rows_.end(), guessed.begin(), guessed.end());
  batch_.Add(rows_, start, state.slot_cap, state.base,
             sequence.score_top ? n_rows
             : draws || checks  ? 1 + item.n_drafted
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
      completion->WantDraws(reader_, first_row, start + n_rows, guessed);
    }
  }
}

// What n_rows more do to a dictionary follows from the positions: a chunk's update takes up all its
// tokens, as many of them as new centroids as the law of growth says.
void Executor::CountUpdates(const StateHandle& state, int32_t n_rows,
                            IterationReport& report) const {
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
