#include "server/engine/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "server/engine/validate.h"

namespace ovq {
namespace {

// Tokens after the next one that can be undone: the state commits nothing before their end.
int64_t MostDrafted(const StateHandle& state) {
  const StateLayout& layout = *state.layout;
  int64_t end = layout.BoundaryAfter(state.position) - 1;
  if (layout.has_unbounded()) end = std::min(end, layout.limits().max_unbounded_tokens);
  return end - (state.position + 1);
}

}  // namespace

void Scheduler::Start(std::shared_ptr<Request> request) {
  request->admitted = config_.options.clock.steady();
  request->order = next_order_++;
  request->weight = config_.options.quotas->Weight(request->tenant);
  const auto n_tokens = static_cast<int64_t>(request->tokens.size());
  GenerateWork* const work = request->generate();
  const bool all = request->score() != nullptr || (work != nullptr && work->wants_tokens()) ||
                   (request->wake() != nullptr && !request->wake()->waits) ||
                   (request->open() != nullptr && !request->open()->waits);
  request->n_prefill = all ? n_tokens : std::max<int64_t>(n_tokens - 1, 0);
  if (work != nullptr) {
    const EngineModel& model = config_.model;
    GenerateRequest& call = work->call;
    if (call.sampling.seed == 0 && !call.seed_given) call.sampling.seed = random_.Next();
    for (int i = 0; i < call.n; ++i) {
      work->completions.push_back(
          std::make_unique<Completion>(call, i, call.sampling.seed + static_cast<uint64_t>(i),
                                       model.eos_token_ids, model.vocab_size, model.tokenizer));
      Completion& completion = *work->completions.back();
      const Speculation speculation = call.output.speculation.value_or(config_.options.speculation);
      if (speculation == Speculation::kNgram && model.can_undo()) completion.Speculate();
      if (request->session != nullptr && request->session->log) {
        const auto consumed = static_cast<size_t>(request->session->state.position);
        completion.ObserveEarlier(std::span(*request->session->log).first(consumed));
      }
      completion.ObservePrompt(request->tokens);
    }
  }
  TakePrefix(*request);
  if (work != nullptr) {
    work->stream->Push(
        {.started = Started{.session_id = work->call.session_id,
                            .prompt_tokens = request->prompt_tokens,
                            .cached_tokens = request->cached_tokens + request->prefix_tokens,
                            .seed = work->call.sampling.seed,
                            .position = request->session != nullptr ? request->cached_tokens : 0}});
  }
  running_.push_back(request);
  chosen_ = false;
  if (!request->prefilling()) FinishPrefill(*request, nullptr);
}

// What begins a sequence may begin where another prompt has been.
void Scheduler::TakePrefix(Request& request) {
  const int64_t most = std::min(request.cacheable, std::ssize(request.tokens) - 1);
  if (most <= 0 || request.sequence->position() > 0 || request.score() != nullptr) return;
  StateHandle& state = request.sequence->state;
  const std::span<const int32_t> tokens = request.tokens;
  const auto memory =
      std::ranges::find(config_.model.variants, state.layout, &ModelVariant::layout);
  request.prefix =
      prefixes_.Begin(request.tenant, *memory, tokens.first(static_cast<size_t>(most)), state);
  request.consumed = request.prefix_tokens = state.position;
  if (request.session == nullptr) return;
  request.session->Record(0, tokens.first(static_cast<size_t>(state.position)));
  sessions_.CheckpointIfDue(*request.session, 0);  // whatever is left: no earlier copy will be made
}

void Scheduler::StartTurn(std::shared_ptr<Request> request) {
  request->cached_tokens = request->session->position();
  if (request->session->pending)
    request->tokens.insert(request->tokens.begin(), *request->session->pending);
  if (!FailIfDead(*request, config_.options.clock.steady())) Start(std::move(request));
}

bool Scheduler::RunStep(Executor& step) {
  const bool copied = CopySome();
  const SteadyTime begin = config_.options.clock.steady();
  if (!StandsAgain(step, begin)) Choose(step, begin);
  watch_.SetRows(wanted_.answers, wanted_.prompts, wanted_.prompt_tokens);
  IterationReport report;
  const std::vector<PlanItem> plan = step.Run(sequences_, report);
  FailUnexecuted(step);
  if (plan.empty()) return copied || !step.failed().empty();
  for (const PlanItem& item : plan) Advance(item, step, report);
  step.DropResults();
  report.duration = TimeBetween(begin, config_.options.clock.steady());
  step.Took(report.duration);
  config_.events.step(report);
  return true;
}

bool Scheduler::StandsAgain(const Executor& step, SteadyTime now) {
  if (!chosen_) return false;
  const std::span<const PlanItem> standing = step.Standing(now);
  for (const PlanItem& item : standing) {
    const Request& request = *owners_[item.id];
    if (request.generate()->stream->full()) return false;
    if (!LookAgain(sequences_[item.id]).ok()) return false;
  }
  return !standing.empty();
}

void Scheduler::Choose(Executor& step, SteadyTime now) {
  Collect(now);
  CountWanted();
  step.Choose(sequences_, now);
  chosen_ = true;
}

void Scheduler::Collect(SteadyTime now) {
  sequences_.clear();
  owners_.clear();
  for (const std::shared_ptr<Request>& request : running_) {
    if (request->ended) continue;
    if (!request->prefilling()) {
      CollectDecoding(*request, now);
      continue;
    }
    StepSequence& sequence = sequences_.emplace_back();
    owners_.push_back(request.get());
    sequence.state = &request->sequence->state;
    const int64_t end = std::min(request->n_prefill, request->prefix.next_stop());
    sequence.tokens = std::span(request->tokens).first(static_cast<size_t>(end));
    sequence.tokens = sequence.tokens.subspan(static_cast<size_t>(request->consumed));
    sequence.consumed = request->consumed;
    if (const ScoreWork* score = request->score()) sequence.score_top = score->top_logprobs;
    Share(*request, sequence);
    const GenerateWork* work = request->generate();
    if (end < request->n_prefill || request->score() != nullptr) continue;
    if (work != nullptr && work->wants_tokens()) {
      sequence.draws = work->completions;
    } else {
      sequence.checked = true;  // what it becomes may be kept, and written to the disk
    }
  }
}

// A row reads the weights and its state, and what is told of it is sorted, written and sent.
void Scheduler::Share(const Request& request, StepSequence& sequence) const {
  sequence.order = request.order;
  sequence.client = request.client;
  sequence.weight = request.weight;
  if (config_.model.weight_bytes == 0) return;
  const int top = sequence.decoding ? request.generate()->call.output.top_logprobs
                                    : sequence.score_top.value_or(0);
  const size_t bytes =
      sequence.state->committed_bytes + static_cast<size_t>(top) * kLogprobCostBytes;
  sequence.row_cost += static_cast<double>(bytes) / static_cast<double>(config_.model.weight_bytes);
}

void Scheduler::CountWanted() {
  wanted_ = {};
  for (const StepSequence& sequence : sequences_) {
    ++(sequence.decoding ? wanted_.answers : wanted_.prompts);
    if (!sequence.decoding) wanted_.prompt_tokens += std::ssize(sequence.tokens);
  }
}

void Scheduler::CollectDecoding(Request& request, SteadyTime now) {
  GenerateWork& work = *request.generate();  // nothing else lives on after its prompt
  if (!work.first.empty()) return;           // its completions have no states yet
  const bool full = work.stream->full();
  if (full && !work.blocked_since) work.blocked_since = now;
  if (!full && work.blocked_since) {
    config_.events.stream_blocked(TimeBetween(*work.blocked_since, now));
    work.blocked_since.reset();
  }
  for (const std::unique_ptr<Completion>& completion : work.completions) {
    if (completion->done) continue;
    StepSequence sequence = {.state = &completion->sequence->state,
                             .decoding = true,
                             .paused = full,
                             .draws = {&completion, 1}};
    if (absl::Status status = LookAgain(sequence); !status.ok()) {
      for (; !owners_.empty() && owners_.back() == &request; owners_.pop_back())
        sequences_.pop_back();
      return Fail(request, FinishReason::kError, status);
    }
    Share(request, sequence);
    sequences_.push_back(sequence);
    owners_.push_back(&request);
  }
}

absl::Status Scheduler::LookAgain(StepSequence& sequence) const {
  const StateHandle& state = *sequence.state;
  Completion& completion = *sequence.draws.front();
  sequence.tokens = {&*completion.sequence->pending, 1};
  sequence.guess = completion.Propose(MostDrafted(state));
  return CheckPosition(*state.layout, state.position + 1);
}

// Draws stand as long as they are what was guessed, up to the one that ends the answer.
void Scheduler::AdvanceAnswer(const PlanItem& item, Executor& step, IterationReport& report) {
  const StepSequence& sequence = sequences_[item.id];
  Request& request = *owners_[item.id];
  Completion& completion = *sequence.draws.front();
  StreamEvent event;
  int32_t n_rows = 0;                                 // that stand
  bool is_damaged = false, goes_on = !request.ended;  // by another of its completions
  for (int32_t i = 0; i <= item.n_drafted; ++i) {
    Sampled drawn = step.NextDraw();
    if (!goes_on) continue;
    // A drafted row that is damaged is left to the step that has it as the sequence's own.
    goes_on = drawn.finite;
    is_damaged = !drawn.finite && i == 0;
    if (!goes_on) continue;
    ++n_rows;
    goes_on = i < item.n_drafted && drawn.token_id == sequence.guess.tokens[i];
    completion.Drawn(std::move(drawn), event);
    goes_on = goes_on && !event.finished;
  }
  if (request.ended) return;
  if (item.n_drafted > 0) {
    absl::Status status = step.KeepRows(sequence, item, std::max(n_rows, 1));
    if (!status.ok()) return FailHalfway(request, sequence.state->position, std::move(status));
  }
  if (is_damaged) return FailDamaged(request, sequence.state->position);
  completion.drafted += item.n_drafted;
  completion.accepted += n_rows - 1;
  report.accepted_tokens += n_rows - 1;
  TakeTokens(request, completion, std::move(event));
}

void Scheduler::Advance(const PlanItem& item, Executor& step, IterationReport& report) {
  const StepSequence& sequence = sequences_[item.id];
  Request& request = *owners_[item.id];
  if (sequence.decoding) {
    AdvanceAnswer(item, step, report);
  } else {
    request.sequence->pending.reset();  // it was the first of the tokens
    if (request.session != nullptr) {
      request.session->Record(request.session->state.position - item.n_rows,
                              sequence.tokens.first(static_cast<size_t>(item.n_rows)));
    }
    if (ScoreWork* work = request.score()) {
      std::optional<int64_t> damaged_at;
      for (int32_t i = 0; i < item.n_rows; ++i) {
        const TokenScore& row = work->result.rows.emplace_back(step.NextScore());
        if (!row.finite && !damaged_at) damaged_at = sequence.state->position - item.n_rows + i + 1;
      }
      if (damaged_at) return FailDamaged(request, *damaged_at);
    }
    request.consumed += item.n_rows;
    if (request.consumed == request.prefix.next_stop())
      prefixes_.Keep(request.prefix, request.sequence->state);
    if (!request.prefilling()) FinishPrefill(request, &step);
  }
  if (request.session == nullptr || request.ended) return;
  if (!request.rewind() && !request.wake())
    sessions_.CheckpointIfDue(*request.session, request.n_prefill - request.consumed);
  if (request.generate() != nullptr) sessions_.PublishProgress(request);
}

// step: of the last of the prompt's tokens; null if there were none to consume.
void Scheduler::FinishPrefill(Request& request, Executor* step) {
  request.prefilled = config_.options.clock.steady();
  if (request.score() != nullptr) return FinishScore(request);
  if (request.generate() == nullptr || !request.generate()->wants_tokens()) {
    if (step != nullptr && !step->NextCheck()) {
      return FailDamaged(request, request.sequence->state.position);
    }
    if (request.consumed < std::ssize(request.tokens))
      Await(request, *request.sequence, {&request.tokens.back(), 1});
    return FinishPrompt(request);
  }
  // All of one row.
  GenerateWork& work = *request.generate();
  for (size_t i = 0; i < work.completions.size(); ++i) work.first.push_back(step->NextDraw());
  if (!work.first.front().finite) return FailDamaged(request, request.sequence->state.position);
  work.completions.front()->sequence = request.sequence;
  if (work.completions.size() == 1) return BeginAnswers(request);
  copies_ = true;
}

bool Scheduler::CopySome() {
  if (!copies_) return false;
  bool any = false;
  size_t bytes = 0;
  for (const std::shared_ptr<Request>& request : running_) {
    GenerateWork* const work = request->generate();
    if (request->ended || work == nullptr || work->first.empty()) continue;
    any = true;
    absl::Status status;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->sequence != nullptr) continue;
      if (bytes >= config_.options.copy_bytes_per_iteration) return true;
      absl::StatusOr<StateHandle> copy = admission_.TakePromised(*request);
      status = copy.status();
      if (!status.ok()) break;
      bytes += pool_.SnapshotBytes(*copy);
      completion->sequence = std::make_shared<Sequence>();
      completion->sequence->state = *copy;
    }
    if (!status.ok()) {
      Fail(*request, FinishReason::kError, std::move(status));
    } else {
      BeginAnswers(*request);
    }
  }
  copies_ = any;
  return any;
}

void Scheduler::BeginAnswers(Request& request) {
  chosen_ = false;
  GenerateWork& work = *request.generate();
  config_.events.first_token(TimeBetween(request.arrival, config_.options.clock.steady()));
  std::vector<Sampled> draws = std::exchange(work.first, {});
  for (size_t i = 0; i < draws.size(); ++i) {
    StreamEvent event;
    work.completions[i]->Drawn(std::move(draws[i]), event);
    TakeTokens(request, *work.completions[i], std::move(event));
  }
}

void Scheduler::Await(Request& request, Sequence& sequence, std::span<const int32_t> tokens) {
  sequence.pending = tokens.back();
  if (request.session == nullptr) return;
  request.session->Record(request.session->state.position - (std::ssize(tokens) - 1), tokens);
}

void Scheduler::TakeTokens(Request& request, Completion& completion, StreamEvent event) {
  const std::vector<int32_t>& tokens = event.chunk->token_ids;
  Await(request, *completion.sequence, tokens);
  config_.options.quotas->ChargeTokens(request.tenant, std::ssize(tokens));
  const SteadyTime now = config_.options.clock.steady();
  if (completion.generated() == 1) {
    completion.first_token = now;
  } else {
    // Tokens of one step share its time.
    const absl::Duration each = TimeBetween(completion.last_token, now) / std::ssize(tokens);
    for (size_t i = 0; i < tokens.size(); ++i) config_.events.next_token(each);
  }
  completion.last_token = now;
  std::optional<Finished> finished = std::exchange(event.finished, std::nullopt);
  request.generate()->stream->Push(std::move(event));
  if (finished) FinishCompletion(request, completion, *std::move(finished));
}

void Scheduler::FailDead(SteadyTime now) {
  for (const std::shared_ptr<Request>& request : running_) {
    if (!request->ended) FailIfDead(*request, now);
  }
}

void Scheduler::FailAll(const absl::Status& status) {
  for (const std::shared_ptr<Request>& request : running_) {
    if (!request->ended) Fail(*request, FinishReason::kError, status);
  }
}

void Scheduler::AddTo(EngineStats& stats) const {
  stats.prefixes = prefixes_.stats();
  const auto add = [&](const Sequence* sequence) {
    if (sequence == nullptr || sequence->state.base == nullptr) return;
    const StateHandle& state = sequence->state;
    stats.live_slots += state.layout->LiveSlotsAt(state.position, state.slot_cap);
    stats.equivalent_kv_cache_bytes +=
        static_cast<size_t>(sequence->position()) * config_.model.full_kv_bytes_per_token;
  };
  for (const std::shared_ptr<Request>& request : running_) {
    if (request->ended) continue;
    ++stats.requests_running;
    const GenerateWork* work = request->generate();
    stats.requests_blocked += work != nullptr && work->blocked_since;
    if (request->in_session()) continue;  // the store counts it
    add(request->sequence.get());
    if (work == nullptr) continue;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->sequence != request->sequence) add(completion->sequence.get());
    }
  }
}

void Scheduler::ForgetEnded() {
  if (!std::exchange(any_ended_, false)) return;
  std::erase_if(running_, [](const std::shared_ptr<Request>& request) { return request->ended; });
}

}  // namespace ovq
