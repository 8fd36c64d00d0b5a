#include "server/engine/scheduling/step_builder.h"

#include <algorithm>

#include "server/engine/common/validate.h"

namespace ovq::engine {
namespace {

// The most tokens after the next one that can be undone: the state commits nothing before their
// end.
int64_t MaxDrafted(const StateHandle& state) {
  const model::StateLayout& layout = *state.layout;
  int64_t end = layout.BoundaryAfter(state.position) - 1;
  if (layout.has_unbounded()) end = std::min(end, layout.limits().max_unbounded_tokens);
  return end - (state.position + 1);
}

}  // namespace

void StepBuilder::Collect(std::span<const std::shared_ptr<Request>> requests, SteadyTime now) {
  candidates_.clear();
  entries_.clear();
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

void StepBuilder::AddPrompt(Request& request) {
  StateHandle& state = request.sequence->state;
  const int64_t end = std::min(request.n_prefill, request.prefix.next_stop());
  const auto tokens = std::span<const int32_t>(request.tokens)
                          .first(static_cast<size_t>(end))
                          .subspan(static_cast<size_t>(request.consumed));
  entries_.push_back(
      {.request = &request, .answer = nullptr, .state = &state, .tokens = tokens, .drafted = {}});
  BatchCandidate& candidate = candidates_.emplace_back();
  candidate.n_tokens = std::ssize(tokens);
  candidate.consumed = request.consumed;
  const ScoreWork* score = request.score();
  AddShare(request, score != nullptr ? score->top_logprobs : 0, state, candidate);
}

void StepBuilder::AddAnswers(Request& request, SteadyTime now) {
  GenerateWork& work = *request.generate();  // no other request goes on after its prompt
  if (!work.first.empty()) return;           // its answers have no states yet
  const bool full = work.stream->full();
  if (full && !work.blocked_since) work.blocked_since = now;
  if (!full && work.blocked_since) {
    config_.events.stream_blocked(TimeBetween(*work.blocked_since, now));
    work.blocked_since.reset();
  }
  const size_t n_before = entries_.size();
  for (const std::unique_ptr<RunningAnswer>& answer : work.answers) {
    if (answer->done) continue;
    StateHandle& state = answer->sequence->state;
    Entry& entry = entries_.emplace_back(Entry{
        .request = &request, .answer = answer.get(), .state = &state, .tokens = {}, .drafted = {}});
    BatchCandidate& candidate = candidates_.emplace_back();
    candidate.decoding = true;
    candidate.paused = full;
    if (absl::Status status = RefreshAnswer(entry, candidate); !status.ok()) {
      entries_.resize(n_before);
      candidates_.resize(n_before);
      return finisher_.Fail(request, FinishReason::kError, std::move(status));
    }
    AddShare(request, work.call.output.top_logprobs, state, candidate);
  }
}

// A token costs the reading of the weights and of its state, and its log-probabilities are sorted,
// written and sent.
void StepBuilder::AddShare(const Request& request, int top_logprobs, const StateHandle& state,
                           BatchCandidate& candidate) const {
  candidate.layout = state.layout;
  candidate.order = request.order;
  candidate.client = request.client;
  candidate.weight = request.weight;
  if (config_.model.weight_bytes == 0) return;
  const size_t bytes =
      state.committed_bytes + static_cast<size_t>(top_logprobs) * kLogprobCostBytes;
  candidate.token_cost +=
      static_cast<double>(bytes) / static_cast<double>(config_.model.weight_bytes);
}

absl::Status StepBuilder::RefreshAnswer(Entry& entry, BatchCandidate& candidate) const {
  entry.tokens = {&*entry.answer->sequence->pending, 1};
  const model::DraftTokens drafts = entry.answer->Propose(MaxDrafted(*entry.state));
  entry.drafted = drafts.tokens;
  candidate.draft_probabilities = drafts.probabilities;
  return CheckPosition(*entry.state->layout, entry.state->position + 1);
}

bool StepBuilder::Refresh(std::span<const PlanItem> plan) {
  return std::ranges::all_of(plan, [this](const PlanItem& item) {
    Entry& entry = entries_[item.candidate];
    return !entry.request->generate()->stream->full() &&
           RefreshAnswer(entry, candidates_[item.candidate]).ok();
  });
}

StepInput StepBuilder::MakeInput(std::span<const PlanItem> plan) const {
  StepInput input;
  input.sequences.reserve(plan.size());
  for (const PlanItem& item : plan) {
    const Entry& entry = entries_[item.candidate];
    const Request& request = *entry.request;
    const GenerateWork* const work = request.generate();
    StepInput::Sequence& sequence = input.sequences.emplace_back();
    sequence.state = entry.state;
    sequence.tokens = entry.tokens.first(static_cast<size_t>(item.n_tokens));
    if (entry.answer != nullptr) {
      sequence.decoding = true;
      sequence.drafted = entry.drafted.first(static_cast<size_t>(item.n_drafted));
      sequence.draws.push_back(entry.answer->NextDraw());
    } else if (const ScoreWork* score = request.score()) {
      sequence.score = {.top_logprobs = score->top_logprobs, .next = entry.tokens.subspan(1)};
    } else if (request.consumed + item.n_tokens < request.n_prefill) {
      continue;
    } else if (work != nullptr && work->wants_tokens()) {
      for (const std::unique_ptr<RunningAnswer>& answer : work->answers) {
        sequence.draws.push_back(answer->NextDraw());
      }
    } else {
      sequence.check = true;  // the state that it becomes may be kept, and written to the disk
    }
  }
  return input;
}

}  // namespace ovq::engine
