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

void Executor::Execute(BatchRun& run) {
  bool any = false;
  for (BatchSequence& sequence : run.sequences) {
    StateHandle& state = *sequence.state;
    absl::Status status = pool_.Commit(state, state.position + std::ssize(sequence.tokens));
    if (status.ok()) {
      any = true;
    } else {
      sequence.failure = {.status = std::move(status)};
    }
  }
  if (!any) return;
  absl::Status computed = kernels::CatchDeviceErrors([&] { Compute(run); });
  if (!computed.ok()) {
    context_.Synchronize();  // launched work still reads memory that was staged for it
    run.undo_memory.reset();
    for (BatchSequence& sequence : run.sequences) {
      if (!sequence.failure) sequence.failure = {.status = computed, .halfway = true};
    }
  }
  reader_ = {};  // scores may be large
}

void Executor::Compute(BatchRun& run) {
  batch_ = {};
  reader_ = {};
  const StateHandle* first = nullptr;
  for (BatchSequence& sequence : run.sequences) {
    if (sequence.failure) continue;
    if (!sequence.drafted.empty()) {
      if (run.undo_memory == nullptr) {
        run.undo_memory = std::make_unique<kernels::ScratchScope>(context_);
      }
      SaveForUndo(sequence, *run.undo_memory);
    }
    AddToBatch(sequence, run.report);
    if (first == nullptr) first = sequence.state;
  }

  kernels::ScratchScope scratch(context_);
  kernels::TensorView logits = model_.VariantWith(first->layout).forward(batch_, context_, scratch);
  logits.shape = {static_cast<int64_t>(batch_.logits_indices.size()), model_.vocab_size};
  reader_.Read(context_, logits);  // the iteration's only wait for the device
  for (BatchSequence& sequence : run.sequences) {
    if (!sequence.failure) ReadResults(sequence);
  }
}

// The sequence's own tokens are kept in any case: they need no copy where a suffix can be undone.
void Executor::SaveForUndo(BatchSequence& sequence, kernels::ScratchScope& memory) {
  const StateHandle& state = *sequence.state;
  const ModelVariant& variant = model_.VariantWith(state.layout);
  kernels::TokenRange& tokens = sequence.undo_tokens;
  const int64_t n_tokens = std::ssize(sequence.tokens);
  tokens = {state.position, state.position + n_tokens + std::ssize(sequence.drafted),
            state.slot_cap};
  sequence.keeps_prefix = variant.can_undo_suffix(tokens);
  if (sequence.keeps_prefix) tokens.begin += n_tokens;
  const std::vector<kernels::StateExtent> extents = variant.undo_extents(tokens);
  sequence.before = memory.Allocate<std::byte>(TotalBytes(extents));
  pool_.Pack(state, extents, sequence.before);
}

void Executor::AddToBatch(BatchSequence& sequence, IterationReport& report) {
  StateHandle& state = *sequence.state;
  const int64_t start = state.position, n_tokens = std::ssize(sequence.tokens);
  CountUpdates(state, n_tokens, report);
  (sequence.decoding ? report.decode_tokens : report.prefill_tokens) +=
      static_cast<int32_t>(n_tokens);
  report.drafted_tokens += static_cast<int32_t>(sequence.drafted.size());
  pool_.Grow(state, start + n_tokens);
  sequence.row = std::ssize(batch_.logits_indices);
  tokens_.assign(sequence.tokens.begin(), sequence.tokens.end());
  tokens_.insert(tokens_.end(), sequence.drafted.begin(), sequence.drafted.end());
  const bool wants_last = !sequence.wants_draws.empty() || sequence.wants_check;
  const int64_t n_logits = sequence.wants_scores ? n_tokens
                           : wants_last          ? 1 + std::ssize(sequence.drafted)
                                                 : 0;
  batch_.Add(tokens_, start, state.slot_cap, state.base, n_logits);
  for (int64_t i = 0; sequence.wants_scores && i < n_tokens; ++i) {
    const auto token =
        i < std::ssize(sequence.next) ? std::optional(sequence.next[i]) : std::nullopt;
    const size_t score = reader_.WantScore(sequence.row + i, token, *sequence.wants_scores);
    if (i == 0) sequence.place = score;
  }
  for (const model::DrawRequest& wanted : sequence.wants_draws) {
    const size_t draw = reader_.WantDraws(wanted, sequence.row, start + n_tokens, sequence.drafted);
    if (&wanted == sequence.wants_draws.begin()) sequence.place = draw;
  }
}

void Executor::ReadResults(BatchSequence& sequence) const {
  const size_t n_scores = sequence.wants_scores ? sequence.tokens.size() : 0;
  sequence.scores.reserve(n_scores);
  for (size_t i = 0; i < n_scores; ++i) {
    sequence.scores.push_back(reader_.Score(sequence.place + i));
  }
  const size_t n_draws = sequence.wants_draws.size() * (1 + sequence.drafted.size());
  for (size_t i = 0; i < n_draws; ++i) sequence.draws.push_back(reader_.Draw(sequence.place + i));
  if (sequence.wants_check) sequence.finite = reader_.IsFinite(sequence.row);
}

absl::Status Executor::AcceptDrafts(const BatchSequence& sequence, int32_t n_accepted) {
  absl::Status undone = kernels::CatchDeviceErrors([&] { Undo(sequence, n_accepted); });
  if (undone.ok()) pool_.Grow(*sequence.state, sequence.state->position + n_accepted);
  return undone;
}

void Executor::Undo(const BatchSequence& sequence, int32_t n_accepted) {
  StateHandle& state = *sequence.state;
  const kernels::TokenRange& undone = sequence.undo_tokens;
  const int64_t start = state.position - std::ssize(sequence.tokens);
  const int64_t end = state.position + n_accepted;
  const ModelVariant& variant = model_.VariantWith(state.layout);
  if (end >= undone.end) return;
  kernels::ScratchScope scratch(context_);
  // Restores the earlier content of all extents, then writes the accepted tokens again: from a copy
  // where their part of the extents is their own, otherwise by another forward pass over them.
  const kernels::TokenRange accepted = {undone.begin, end, state.slot_cap};
  std::vector<kernels::StateExtent> kept;
  if (sequence.keeps_prefix && end > accepted.begin) kept = variant.undo_extents(accepted);
  std::byte* const bytes = scratch.Allocate<std::byte>(TotalBytes(kept));
  pool_.Pack(state, kept, bytes);
  pool_.Unpack(state, variant.undo_extents(undone), sequence.before);
  pool_.Unpack(state, kept, bytes);
  if (sequence.keeps_prefix) return;
  tokens_.assign(sequence.tokens.begin(), sequence.tokens.end());
  const auto drafted = sequence.drafted.first(static_cast<size_t>(n_accepted));
  tokens_.insert(tokens_.end(), drafted.begin(), drafted.end());
  batch_ = {};
  batch_.Add(tokens_, start, state.slot_cap, state.base, /*n_logits=*/0);
  variant.forward(batch_, context_, scratch);
}

}  // namespace ovq::engine
