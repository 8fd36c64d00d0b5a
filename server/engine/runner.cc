#include "server/engine/runner.h"

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

void Runner::Start(std::shared_ptr<Job> job) {
  job->admitted = config_.options.clock.steady();
  job->order = next_order_++;
  job->weight = config_.options.quotas->Weight(job->tenant);
  const auto n_tokens = static_cast<int64_t>(job->tokens.size());
  GenerateWork* const work = job->generate();
  const bool all = job->score() != nullptr || (work != nullptr && work->wants_tokens()) ||
                   (job->wake() != nullptr && !job->wake()->waits) ||
                   (job->open() != nullptr && !job->open()->waits);
  job->n_prefill = all ? n_tokens : std::max<int64_t>(n_tokens - 1, 0);
  if (work != nullptr) {
    const EngineModel& model = config_.model;
    GenerateRequest& request = work->request;
    if (request.sampling.seed == 0 && !request.seed_given) request.sampling.seed = random_.Next();
    for (int i = 0; i < request.n; ++i) {
      work->completions.push_back(
          std::make_unique<Completion>(request, i, request.sampling.seed + static_cast<uint64_t>(i),
                                       model.eos_token_ids, model.vocab_size, model.tokenizer));
      Completion& completion = *work->completions.back();
      const Speculation speculation =
          request.output.speculation.value_or(config_.options.speculation);
      if (speculation == Speculation::kNgram && model.undoes()) completion.Speculate();
      if (job->session != nullptr && job->session->log) {
        const auto consumed = static_cast<size_t>(job->session->state.position);
        completion.ObserveEarlier(std::span(*job->session->log).first(consumed));
      }
      completion.ObservePrompt(job->tokens);
    }
  }
  TakePrefix(*job);
  if (work != nullptr) {
    work->stream->Push(
        {.started = Started{.session_id = work->request.session_id,
                            .prompt_tokens = job->prompt_tokens,
                            .cached_tokens = job->cached_tokens + job->prefix_tokens,
                            .seed = work->request.sampling.seed,
                            .position = job->session != nullptr ? job->cached_tokens : 0}});
  }
  jobs_.push_back(job);
  chosen_ = false;
  if (!job->prefilling()) FinishPrefill(*job, nullptr);
}

// What begins a sequence may begin where another prompt has been.
void Runner::TakePrefix(Job& job) {
  const int64_t most = std::min(job.cacheable, std::ssize(job.tokens) - 1);
  if (most <= 0 || job.sequence->position() > 0 || job.score() != nullptr) return;
  StateHandle& state = job.sequence->state;
  const std::span<const int32_t> tokens = job.tokens;
  const auto memory =
      std::ranges::find(config_.model.memories, state.layout, &EngineMemory::layout);
  job.prefix = prefixes_.Begin(job.tenant, *memory, tokens.first(static_cast<size_t>(most)), state);
  job.consumed = job.prefix_tokens = state.position;
  if (job.session == nullptr) return;
  job.session->Record(0, tokens.first(static_cast<size_t>(state.position)));
  sessions_.MayCheckpoint(*job.session, 0);  // whatever is left: no earlier copy will be made
}

void Runner::Begin(std::shared_ptr<Job> job) {
  job->cached_tokens = job->session->position();
  if (job->session->pending) job->tokens.insert(job->tokens.begin(), *job->session->pending);
  if (!FailIfDead(*job, config_.options.clock.steady())) Start(std::move(job));
}

void Runner::StartTurn(std::shared_ptr<Job> job) {
  const std::shared_ptr<Session> session = job->session;
  session->client = job->client;
  sessions_.Wake(session, [this, job = std::move(job)](absl::Status status) {
    if (status.ok()) return Begin(job);
    Fail(*job, FinishReason::kError, std::move(status));
  });
}

bool Runner::RunStep(Step& step) {
  const bool copied = CopySome();
  const SteadyTime begin = config_.options.clock.steady();
  if (!StandsAgain(step, begin)) Choose(step, begin);
  watch_.SetRows(wanted_.answers, wanted_.prompts, wanted_.prompt_tokens);
  StepReport report;
  const std::vector<PlanItem> plan = step.Run(sequences_, report);
  FailThoseOf(step);
  if (plan.empty()) return copied || !step.failed().empty();
  for (const PlanItem& item : plan) Advance(item, step, report);
  step.DropResults();
  report.duration = TimeBetween(begin, config_.options.clock.steady());
  step.Took(report.duration);
  config_.events.step(report);
  return true;
}

bool Runner::StandsAgain(const Step& step, SteadyTime now) {
  if (!chosen_) return false;
  const std::span<const PlanItem> standing = step.Standing(now);
  for (const PlanItem& item : standing) {
    const Job& job = *owners_[static_cast<size_t>(item.id)];
    if (job.generate()->stream->full()) return false;
    if (!LookAgain(sequences_[static_cast<size_t>(item.id)]).ok()) return false;
  }
  return !standing.empty();
}

void Runner::Choose(Step& step, SteadyTime now) {
  Collect(now);
  CountWanted();
  step.Choose(sequences_, now);
  chosen_ = true;
}

void Runner::Collect(SteadyTime now) {
  sequences_.clear();
  owners_.clear();
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (job->ended) continue;
    if (!job->prefilling()) {
      CollectDecoding(*job, now);
      continue;
    }
    StepSequence& sequence = sequences_.emplace_back();
    owners_.push_back(job.get());
    sequence.state = &job->sequence->state;
    const int64_t end = std::min(job->n_prefill, job->prefix.next_stop());
    sequence.tokens = std::span(job->tokens).first(static_cast<size_t>(end));
    sequence.tokens = sequence.tokens.subspan(static_cast<size_t>(job->consumed));
    sequence.consumed = job->consumed;
    if (const ScoreWork* score = job->score()) sequence.score_top = score->top_logprobs;
    Share(*job, sequence);
    const GenerateWork* work = job->generate();
    if (end < job->n_prefill || job->score() != nullptr) continue;
    if (work != nullptr && work->wants_tokens()) {
      sequence.draws = work->completions;
    } else {
      sequence.checked = true;  // what it becomes may be kept, and written to the disk
    }
  }
}

// A row reads the weights and its state, and what is told of it is sorted, written and sent.
void Runner::Share(const Job& job, StepSequence& sequence) const {
  sequence.order = job.order;
  sequence.client = job.client;
  sequence.weight = job.weight;
  if (config_.model.weight_bytes == 0) return;
  const int top = sequence.decoding ? job.generate()->request.output.top_logprobs
                                    : sequence.score_top.value_or(0);
  const size_t bytes =
      sequence.state->committed_bytes + static_cast<size_t>(top) * kLogprobCostBytes;
  sequence.row_cost += static_cast<double>(bytes) / static_cast<double>(config_.model.weight_bytes);
}

void Runner::CountWanted() {
  wanted_ = {};
  for (const StepSequence& sequence : sequences_) {
    ++(sequence.decoding ? wanted_.answers : wanted_.prompts);
    if (!sequence.decoding) wanted_.prompt_tokens += std::ssize(sequence.tokens);
  }
}

void Runner::CollectDecoding(Job& job, SteadyTime now) {
  GenerateWork& work = *job.generate();  // nothing else lives on after its prompt
  if (!work.first.empty()) return;       // its completions have no states yet
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
      for (; !owners_.empty() && owners_.back() == &job; owners_.pop_back()) sequences_.pop_back();
      return Fail(job, FinishReason::kError, status);
    }
    Share(job, sequence);
    sequences_.push_back(sequence);
    owners_.push_back(&job);
  }
}

absl::Status Runner::LookAgain(StepSequence& sequence) const {
  const StateHandle& state = *sequence.state;
  Completion& completion = *sequence.draws.front();
  sequence.tokens = {&*completion.sequence->pending, 1};
  sequence.guess = completion.Guess(MostDrafted(state));
  return CheckPosition(*state.layout, state.position + 1);
}

// Draws stand as long as they are what was guessed, up to the one that ends the answer.
void Runner::AdvanceAnswer(const PlanItem& item, Step& step, StepReport& report) {
  const StepSequence& sequence = sequences_[item.id];
  Job& job = *owners_[item.id];
  Completion& completion = *sequence.draws.front();
  StreamEvent event;
  int32_t n_rows = 0;                             // that stand
  bool is_damaged = false, goes_on = !job.ended;  // by another of its completions
  for (int32_t i = 0; i <= item.n_drafted; ++i) {
    Sampled drawn = step.NextDraw();
    if (!goes_on) continue;
    // A drafted row that is damaged is left to the step that has it as the sequence's own.
    goes_on = drawn.finite;
    is_damaged = !drawn.finite && i == 0;
    if (!goes_on) continue;
    ++n_rows;
    goes_on = i < item.n_drafted && drawn.token_id == sequence.guess.tokens[static_cast<size_t>(i)];
    completion.Drawn(std::move(drawn), event);
    goes_on = goes_on && !event.finished;
  }
  if (job.ended) return;
  if (item.n_drafted > 0) {
    absl::Status status = step.KeepRows(sequence, item, std::max(n_rows, 1));
    if (!status.ok()) return FailHalfway(job, sequence.state->position, std::move(status));
  }
  if (is_damaged) return FailDamaged(job, sequence.state->position);
  completion.drafted += item.n_drafted;
  completion.accepted += n_rows - 1;
  report.accepted_rows += n_rows - 1;
  TakeTokens(job, completion, std::move(event));
}

void Runner::Advance(const PlanItem& item, Step& step, StepReport& report) {
  const StepSequence& sequence = sequences_[item.id];
  Job& job = *owners_[item.id];
  if (sequence.decoding) {
    AdvanceAnswer(item, step, report);
  } else {
    job.sequence->pending.reset();  // it was the first of the tokens
    if (job.session != nullptr) {
      job.session->Record(job.session->state.position - item.n_rows,
                          sequence.tokens.first(static_cast<size_t>(item.n_rows)));
    }
    if (ScoreWork* work = job.score()) {
      std::optional<int64_t> damaged_at;
      for (int32_t i = 0; i < item.n_rows; ++i) {
        const RowScore& row = work->result.rows.emplace_back(step.NextScore());
        if (!row.finite && !damaged_at) damaged_at = sequence.state->position - item.n_rows + i + 1;
      }
      if (damaged_at) return FailDamaged(job, *damaged_at);
    }
    job.consumed += item.n_rows;
    if (job.consumed == job.prefix.next_stop()) prefixes_.Keep(job.prefix, job.sequence->state);
    if (!job.prefilling()) FinishPrefill(job, &step);
  }
  if (job.session == nullptr || job.ended) return;
  if (!job.rewind() && !job.wake())
    sessions_.MayCheckpoint(*job.session, job.n_prefill - job.consumed);
  if (job.generate() != nullptr) sessions_.Publish(job);
}

// step: of the last of the prompt's tokens; null if there were none to consume.
void Runner::FinishPrefill(Job& job, Step* step) {
  job.prefilled = config_.options.clock.steady();
  if (job.score() != nullptr) return FinishScore(job);
  if (job.generate() == nullptr || !job.generate()->wants_tokens()) {
    if (step != nullptr && !step->NextCheck()) {
      return FailDamaged(job, job.sequence->state.position);
    }
    if (job.consumed < std::ssize(job.tokens)) Await(job, *job.sequence, {&job.tokens.back(), 1});
    return FinishPrompt(job);
  }
  // All of one row.
  GenerateWork& work = *job.generate();
  for (size_t i = 0; i < work.completions.size(); ++i) work.first.push_back(step->NextDraw());
  if (!work.first.front().finite) return FailDamaged(job, job.sequence->state.position);
  work.completions.front()->sequence = job.sequence;
  if (work.completions.size() == 1) return BeginAnswers(job);
  copies_ = true;
}

bool Runner::CopySome() {
  if (!copies_) return false;
  bool any = false;
  size_t bytes = 0;
  for (const std::shared_ptr<Job>& job : jobs_) {
    GenerateWork* const work = job->generate();
    if (job->ended || work == nullptr || work->first.empty()) continue;
    any = true;
    absl::Status status;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->sequence != nullptr) continue;
      if (bytes >= config_.options.copy_bytes_per_turn) return true;
      absl::StatusOr<StateHandle> copy = admission_.TakePromised(*job);
      status = copy.status();
      if (!status.ok()) break;
      bytes += pool_.SnapshotBytes(*copy);
      completion->sequence = std::make_shared<Sequence>();
      completion->sequence->state = *copy;
    }
    if (!status.ok()) {
      Fail(*job, FinishReason::kError, std::move(status));
    } else {
      BeginAnswers(*job);
    }
  }
  copies_ = any;
  return any;
}

void Runner::BeginAnswers(Job& job) {
  chosen_ = false;
  GenerateWork& work = *job.generate();
  config_.events.first_token(TimeBetween(job.arrival, config_.options.clock.steady()));
  std::vector<Sampled> draws = std::exchange(work.first, {});
  for (size_t i = 0; i < draws.size(); ++i) {
    StreamEvent event;
    work.completions[i]->Drawn(std::move(draws[i]), event);
    TakeTokens(job, *work.completions[i], std::move(event));
  }
}

void Runner::Await(Job& job, Sequence& sequence, std::span<const int32_t> tokens) {
  sequence.pending = tokens.back();
  if (job.session == nullptr) return;
  job.session->Record(job.session->state.position - (std::ssize(tokens) - 1), tokens);
}

void Runner::TakeTokens(Job& job, Completion& completion, StreamEvent event) {
  const std::vector<int32_t>& tokens = event.chunk->token_ids;
  Await(job, *completion.sequence, tokens);
  config_.options.quotas->ChargeTokens(job.tenant, std::ssize(tokens));
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
  job.generate()->stream->Push(std::move(event));
  if (finished) FinishCompletion(job, completion, *std::move(finished));
}

void Runner::FailDead(SteadyTime now) {
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (!job->ended) FailIfDead(*job, now);
  }
}

void Runner::FailAll(const absl::Status& status) {
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (!job->ended) Fail(*job, FinishReason::kError, status);
  }
}

void Runner::AddTo(EngineStats& stats) const {
  stats.prefixes = prefixes_.stats();
  const auto add = [&](const Sequence* sequence) {
    if (sequence == nullptr || sequence->state.base == nullptr) return;
    const StateHandle& state = sequence->state;
    stats.live_slots += state.layout->LiveSlotsAt(state.position, state.slot_cap);
    stats.equivalent_kv_cache_bytes +=
        static_cast<size_t>(sequence->position()) * config_.model.full_kv_bytes_per_token;
  };
  for (const std::shared_ptr<Job>& job : jobs_) {
    if (job->ended) continue;
    ++stats.requests_running;
    const GenerateWork* work = job->generate();
    stats.requests_blocked += work != nullptr && work->blocked_since;
    if (job->in_session()) continue;  // the store counts it
    add(job->sequence.get());
    if (work == nullptr) continue;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->sequence != job->sequence) add(completion->sequence.get());
    }
  }
}

void Runner::ForgetEnded() {
  if (!std::exchange(any_ended_, false)) return;
  std::erase_if(jobs_, [](const std::shared_ptr<Job>& job) { return job->ended; });
}

}  // namespace ovq
