#include "server/engine/scheduling/executor.h"

#include <algorithm>
#include <utility>

#include "kernels/common/device_memory.h"

namespace ovq::engine {
namespace {

size_t TotalBytes(std::span<const kernels::StateExtent> extents) {
  size_t bytes = 0;
  for (const kernels::StateExtent& extent : extents) bytes += extent.total_bytes();
  return bytes;
}

// Counts what `n_tokens` more do to a dictionary, which follows from the positions: a chunk's
// update takes up all its tokens, as many of them as new centroids as the law of growth says.
void CountUpdates(const StateHandle& state, int64_t n_tokens, IterationReport& report) {
  const model::StateLayout& layout = *state.layout;
  const int64_t end = state.position + n_tokens;
  const int64_t tokens = layout.DictionaryTokens(end) - layout.DictionaryTokens(state.position);
  if (tokens == 0) return;
  const int64_t inserts =
      layout.LiveSlotsAt(end, state.slot_cap) - layout.LiveSlotsAt(state.position, state.slot_cap);
  report.dictionary_inserts += inserts;
  report.dictionary_merges += tokens - inserts;
}

}  // namespace

StepOutput Executor::Execute(const StepInput& input) {
  StepOutput output;
  output.sequences.resize(input.sequences.size());
  bool any = false;
  for (size_t i = 0; i < input.sequences.size(); ++i) {
    const StepInput::Sequence& sequence = input.sequences[i];
    StateHandle& state = *sequence.state;
    absl::Status status = pool_.Commit(state, state.position + std::ssize(sequence.tokens));
    if (status.ok()) {
      any = true;
    } else {
      output.sequences[i].failure = {.status = std::move(status)};
    }
  }
  if (!any) return output;
  absl::Status computed = kernels::CatchOutOfMemory([&] { Compute(input, output); });
  if (!computed.ok()) {
    context_.Synchronize();  // launched work still reads memory that was staged for it
    output.undo_memory.reset();
    for (StepOutput::Sequence& sequence : output.sequences) {
      if (!sequence.failure) sequence = {.failure = {{.status = computed, .halfway = true}}};
    }
  }
  reader_ = {};  // scores may be large
  return output;
}

void Executor::Compute(const StepInput& input, StepOutput& output) {
  batch_ = {};
  reader_ = {};
  places_.assign(input.sequences.size(), {});
  const StateHandle* first = nullptr;
  for (size_t i = 0; i < input.sequences.size(); ++i) {
    const StepInput::Sequence& sequence = input.sequences[i];
    if (output.sequences[i].failure) continue;
    if (!sequence.drafted.empty()) {
      if (output.undo_memory == nullptr) {
        output.undo_memory = std::make_unique<kernels::ScratchScope>(context_);
      }
      output.sequences[i].undo = SaveForUndo(sequence, *output.undo_memory);
    }
    places_[i] = AddToBatch(sequence, output.report);
    if (first == nullptr) first = sequence.state;
  }

  kernels::ScratchScope scratch(context_);
  kernels::TensorView logits = VariantFor(*first).forward(batch_, context_, scratch);
  logits.shape = {static_cast<int64_t>(batch_.logits_indices.size()), model_.vocab_size};
  reader_.Read(context_, logits);  // the iteration's only wait for the device
  for (size_t i = 0; i < input.sequences.size(); ++i) {
    if (output.sequences[i].failure) continue;
    ReadResults(input.sequences[i], places_[i], output.sequences[i]);
  }
}

const ModelVariant& Executor::VariantFor(const StateHandle& state) const {
  return *std::ranges::find(model_.variants, state.layout, &ModelVariant::layout);
}

// The sequence's own token is kept in any case: it needs no copy where a suffix can be undone.
DraftUndo Executor::SaveForUndo(const StepInput::Sequence& sequence,
                                kernels::ScratchScope& memory) {
  const StateHandle& state = *sequence.state;
  const ModelVariant& variant = VariantFor(state);
  kernels::TokenRange tokens = {state.position, state.position + 1 + std::ssize(sequence.drafted),
                                state.slot_cap};
  const bool keeps_prefix = variant.can_undo_suffix(tokens);
  if (keeps_prefix) ++tokens.begin;
  const std::vector<kernels::StateExtent> extents = variant.undo_extents(tokens);
  std::byte* const before = memory.Allocate<std::byte>(TotalBytes(extents));
  pool_.Pack(state, extents, before);
  return {.tokens = tokens, .keeps_prefix = keeps_prefix, .before = before};
}

Executor::Place Executor::AddToBatch(const StepInput::Sequence& sequence, IterationReport& report) {
  StateHandle& state = *sequence.state;
  const int64_t start = state.position, n_tokens = std::ssize(sequence.tokens);
  CountUpdates(state, n_tokens, report);
  (sequence.decoding ? report.decode_tokens : report.prefill_tokens) +=
      static_cast<int32_t>(n_tokens);
  report.drafted_tokens += static_cast<int32_t>(sequence.drafted.size());
  pool_.Grow(state, start + n_tokens);
  Place place{.row = std::ssize(batch_.logits_indices)};
  tokens_.assign(sequence.tokens.begin(), sequence.tokens.end());
  tokens_.insert(tokens_.end(), sequence.drafted.begin(), sequence.drafted.end());
  const bool wants_last = !sequence.draws.empty() || sequence.check;
  const int64_t n_logits = sequence.score ? n_tokens
                           : wants_last   ? 1 + std::ssize(sequence.drafted)
                                          : 0;
  batch_.Add(tokens_, start, state.slot_cap, state.base, n_logits);
  if (sequence.score) {
    const std::span<const int32_t> next = sequence.score->next;
    for (size_t i = 0; i < sequence.tokens.size(); ++i) {
      const auto token = i < next.size() ? std::optional(next[i]) : std::nullopt;
      const size_t score = reader_.WantScore(place.row + static_cast<int64_t>(i), token,
                                             sequence.score->top_logprobs);
      if (i == 0) place.first_score = score;
    }
  }
  for (size_t i = 0; i < sequence.draws.size(); ++i) {
    const size_t draw =
        reader_.WantDraws(sequence.draws[i], place.row, start + n_tokens, sequence.drafted);
    if (i == 0) place.first_draw = draw;
  }
  return place;
}

void Executor::ReadResults(const StepInput::Sequence& sequence, const Place& place,
                           StepOutput::Sequence& output) const {
  if (sequence.score) {
    output.scores.reserve(sequence.tokens.size());
    for (size_t i = 0; i < sequence.tokens.size(); ++i) {
      output.scores.push_back(reader_.Score(place.first_score + i));
    }
  }
  const size_t n_draws = sequence.draws.size() * (1 + sequence.drafted.size());
  for (size_t i = 0; i < n_draws; ++i) {
    output.draws.push_back(reader_.Draw(place.first_draw + i));
  }
  if (sequence.check) output.finite = reader_.IsFinite(place.row);
}

absl::Status Executor::AcceptDrafts(const StepInput::Sequence& sequence,
                                    const StepOutput::Sequence& output, int32_t n_tokens) {
  absl::Status undone = kernels::CatchOutOfMemory([&] { Undo(sequence, *output.undo, n_tokens); });
  if (undone.ok()) pool_.Grow(*sequence.state, sequence.state->position - 1 + n_tokens);
  return undone;
}

void Executor::Undo(const StepInput::Sequence& sequence, const DraftUndo& undo, int32_t n_tokens) {
  StateHandle& state = *sequence.state;
  const int64_t start = state.position - 1, end = start + n_tokens;
  const ModelVariant& variant = VariantFor(state);
  if (end >= undo.tokens.end) return;
  kernels::ScratchScope scratch(context_);
  // Restores the earlier content of all extents, then writes the accepted tokens again: from a copy
  // where their part of the extents is their own, otherwise by another forward pass over them.
  const kernels::TokenRange accepted = {undo.tokens.begin, end, state.slot_cap};
  std::vector<kernels::StateExtent> kept;
  if (undo.keeps_prefix && end > accepted.begin) kept = variant.undo_extents(accepted);
  std::byte* const bytes = scratch.Allocate<std::byte>(TotalBytes(kept));
  pool_.Pack(state, kept, bytes);
  pool_.Unpack(state, variant.undo_extents(undo.tokens), undo.before);
  pool_.Unpack(state, kept, bytes);
  if (undo.keeps_prefix) return;
  tokens_.assign(sequence.tokens.begin(), sequence.tokens.end());
  const auto drafted = sequence.drafted.first(static_cast<size_t>(n_tokens - 1));
  tokens_.insert(tokens_.end(), drafted.begin(), drafted.end());
  batch_ = {};
  batch_.Add(tokens_, start, state.slot_cap, state.base, /*n_logits=*/0);
  variant.forward(batch_, context_, scratch);
}

}  // namespace ovq::engine
