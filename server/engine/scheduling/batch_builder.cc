#include "server/engine/scheduling/batch_builder.h"

#include <algorithm>

#include "server/engine/common/validate.h"

namespace ovq::engine {
namespace {

// The most tokens after the next n_tokens that can be undone: the state commits nothing before
// their end.
int64_t MaxDrafted(const StateHandle& state, int64_t n_tokens) {
  const model::StateLayout& layout = *state.layout;
  int64_t end = layout.BoundaryAfter(state.position) - 1;
  if (layout.has_unbounded()) end = std::min(end, layout.limits().max_unbounded_tokens);
  return end - (state.position + n_tokens);
}

// The forced tokens for which full-attention layers have room.
int64_t CountForced(const RunningAnswer& answer, const StateHandle& state) {
  const model::StateLayout& layout = *state.layout;
  const int64_t n_forced = std::ssize(answer.forced());
  if (!layout.has_unbounded()) return n_forced;
  const int64_t room = layout.limits().max_unbounded_tokens - (state.position + 1);
  return std::clamp<int64_t>(room, 0, n_forced);
}

// Answers to one prompt have one form: what took some of them long will take others as long.
absl::Duration MeanFormTime(std::span<const std::unique_ptr<RunningAnswer>> answers) {
  absl::Duration sum;
  int64_t n = 0;
  for (const std::unique_ptr<RunningAnswer>& answer : answers) {
    if (answer->done) continue;
    sum += answer->form_time();
    ++n;
  }
  return n == 0 ? sum : sum / n;
}

}  // namespace

void BatchBuilder::Collect(std::span<const std::shared_ptr<Request>> requests, SteadyTime now) {
  candidates_.clear();
  for (const std::shared_ptr<Request>& request : requests) {
    if (request->ended) continue;
    if (request->prefilling()) {
      AddPrompt(*request);
    } else {
      AddAnswers(*request, now);
    }
  }
  work_ = {};
  for (const BatchCandidate& candidate : candidates_) {
    ++(candidate.decoding ? work_.answers : work_.prompts);
    if (!candidate.decoding) work_.prompt_tokens += candidate.n_tokens;
  }
}

// A token costs the reading of the weights and of its state, and its log-probabilities are sorted.
BatchCandidate& BatchBuilder::AddCandidate(Request& request, StateHandle& state,
                                           const RowCounts& rows) {
  BatchCandidate& candidate = candidates_.emplace_back();
  candidate.layout = state.layout;
  candidate.order = request.order;
  candidate.client = request.client;
  candidate.weight = request.weight;
  candidate.request = &request;
  candidate.state = &state;
  candidate.rows = rows;
  if (config_.model.weight_bytes == 0) return candidate;
  candidate.token_cost = planner_.Cost(rows) + static_cast<double>(state.committed_bytes) /
                                                   static_cast<double>(config_.model.weight_bytes);
  return candidate;
}

void BatchBuilder::AddPrompt(Request& request) {
  const GenerateWork* const work = request.generate();
  const size_t n_answers = work == nullptr ? 0 : work->answers.size();
  const auto left = static_cast<double>(request.n_prefill - request.consumed);
  // Behind the prompt each answer has its first token.
  const RowCounts rows = {0, 1, static_cast<double>(n_answers) / left,
                          static_cast<double>(request.scored_alternatives())};
  BatchCandidate& candidate = AddCandidate(request, request.sequence->state, rows);
  int64_t end = std::min(request.n_prefill, request.prefix.next_stop());
  if (request.consumed < request.n_scored()) end = std::min(end, request.n_scored());
  candidate.tokens = std::span<const int32_t>(request.tokens)
                         .first(static_cast<size_t>(end))
                         .subspan(static_cast<size_t>(request.consumed));
  candidate.n_tokens = std::ssize(candidate.tokens);
  candidate.consumed = request.consumed;
  if (n_answers == 0) return;
  // The answers' forms are alike.
  const absl::Duration form = work->answers.front()->form_time() * static_cast<double>(n_answers);
  candidate.token_seconds = absl::ToDoubleSeconds(form) / left;
}

void BatchBuilder::AddAnswers(Request& request, SteadyTime now) {
  GenerateWork& work = *request.generate();  // no other request goes on after its prompt
  if (!work.first.empty()) return;           // its answers have not all begun
  const bool full = work.stream->full();
  if (full && !work.blocked_since) work.blocked_since = now;
  if (!full && work.blocked_since) {
    config_.events.stream_blocked(TimeBetween(*work.blocked_since, now));
    work.blocked_since.reset();
  }
  const double form_seconds = absl::ToDoubleSeconds(MeanFormTime(work.answers));
  const RowCounts rows = {1, 0, 0, static_cast<double>(work.call.output.top_logprobs)};
  const size_t n_before = candidates_.size();
  for (const std::unique_ptr<RunningAnswer>& answer : work.answers) {
    if (answer->done) continue;
    BatchCandidate& candidate = AddCandidate(request, answer->sequence->state, rows);
    candidate.answer = answer.get();
    candidate.token_seconds = form_seconds;
    candidate.decoding = true;
    candidate.paused = full;
    if (absl::Status status = RefreshAnswer(candidate); !status.ok()) {
      candidates_.resize(n_before);
      return finisher_.Fail(request, FinishReason::kError, std::move(status));
    }
  }
}

absl::Status BatchBuilder::RefreshAnswer(BatchCandidate& candidate) {
  RunningAnswer& answer = *candidate.answer;
  const int64_t n_forced = CountForced(answer, *candidate.state);
  const bool all = n_forced == std::ssize(answer.forced());
  const model::DraftTokens drafts =
      answer.Propose(all ? MaxDrafted(*candidate.state, 1 + n_forced) : 0);
  if (n_forced == 0) {
    candidate.tokens = {&*answer.sequence->pending, 1};
    candidate.draft_probabilities = drafts.probabilities;
  } else {
    const RunningAnswer::Following following = answer.Follow(n_forced, drafts.probabilities);
    candidate.tokens = following.tokens;
    candidate.draft_probabilities = following.probabilities;
  }
  candidate.drafted = drafts.tokens;
  return CheckPosition(*candidate.layout, candidate.state->position + 1);
}

bool BatchBuilder::Refresh(std::span<const PlanItem> plan) {
  return std::ranges::all_of(plan, [this](const PlanItem& item) {
    BatchCandidate& candidate = candidates_[item.candidate];
    return !candidate.request->generate()->stream->full() && RefreshAnswer(candidate).ok();
  });
}

// The model is asked for a token only where all forced ones are in the batch: else another one of
// them follows.
void BatchBuilder::AddDecoding(const BatchCandidate& candidate, const PlanItem& item,
                               BatchSequence& sequence) {
  const auto n_added = static_cast<size_t>(item.n_drafted);
  const size_t n_tokens = std::min(1 + n_added, candidate.tokens.size());
  sequence.decoding = true;
  sequence.tokens = candidate.tokens.first(n_tokens);
  sequence.drafted = candidate.drafted.first(1 + n_added - n_tokens);
  if (n_tokens == 1 + candidate.answer->forced().size()) {
    sequence.wants_draws.push_back(candidate.answer->NextDraw());
  } else {
    sequence.wants_check = candidate.request->session != nullptr;
  }
}

std::vector<BatchSequence> BatchBuilder::MakeSequences(std::span<const PlanItem> plan) const {
  std::vector<BatchSequence> sequences;
  sequences.reserve(plan.size());
  for (const PlanItem& item : plan) {
    const BatchCandidate& candidate = candidates_[item.candidate];
    const Request& request = *candidate.request;
    const GenerateWork* const work = request.generate();
    BatchSequence& sequence = sequences.emplace_back();
    sequence.state = candidate.state;
    sequence.tokens = candidate.tokens.first(static_cast<size_t>(item.n_tokens));
    if (candidate.answer != nullptr) {
      AddDecoding(candidate, item, sequence);
    } else if (request.consumed < request.n_scored()) {
      sequence.wants_scores = request.scored_alternatives();
      sequence.next = std::span(request.tokens).subspan(static_cast<size_t>(request.consumed) + 1);
    } else if (request.consumed + item.n_tokens < request.n_prefill) {
      continue;
    } else if (work != nullptr && work->wants_tokens()) {
      for (const std::unique_ptr<RunningAnswer>& answer : work->answers) {
        sequence.wants_draws.push_back(answer->NextDraw());
      }
    } else {
      sequence.wants_check = true;  // the state that it becomes may be kept, and written to disk
    }
  }
  return sequences;
}

}  // namespace ovq::engine
