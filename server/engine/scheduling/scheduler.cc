#include "server/engine/scheduling/scheduler.h"

#include <algorithm>
#include <utility>

#include "server/engine/common/error_facts.h"
#include "server/engine/scheduling/calibration.h"

namespace ovq::engine {
namespace {

// Time for the forms of a call's first tokens between two iterations.
constexpr absl::Duration kMostFormTime = absl::Milliseconds(2);

}  // namespace

void Scheduler::Calibrate(Executor& executor) {
  if (config_.options.calibration <= absl::ZeroDuration() || config_.model.weight_bytes == 0)
    return;
  engine::Calibrate(config_, core_.pool, executor, planner_.costs());
}

void Scheduler::Start(std::shared_ptr<Request> request) {
  request->admitted = config_.options.clock.steady();
  request->order = next_order_++;
  // A session that is swapped in has its tenant's part, though no call is charged for it.
  request->weight = config_.options.quotas->Weight(
      request->session != nullptr ? request->session->info.tenant : request->tenant);
  if (!ending_.ok()) return Fail(*request, FinishReason::kError, ending_);
  const auto n_tokens = static_cast<int64_t>(request->tokens.size());
  GenerateWork* const work = request->generate();
  const SessionWork* const session_work = request->session_work();
  const bool all = request->score() != nullptr || (work != nullptr && work->wants_tokens()) ||
                   (session_work != nullptr && !session_work->leaves_last);
  request->n_prefill = all ? n_tokens : std::max<int64_t>(n_tokens - 1, 0);
  if (work != nullptr) {
    absl::Status status = MakeAnswers(*request);
    if (!status.ok()) return Fail(*request, FinishReason::kError, std::move(status));
  }
  RestorePrefix(*request);
  if (work != nullptr) {
    work->stream->Push(
        {.started = Started{.session_id = work->call.session_id,
                            .prompt_tokens = request->prompt_tokens,
                            .cached_tokens = request->cached_tokens + request->prefix_tokens,
                            .seed = work->call.sampling.seed,
                            .position = request->session != nullptr ? request->cached_tokens : 0}});
  }
  running_.push_back(request);
  planner_.DropStanding();
  if (!request->prefilling()) FinishPrefill(*request, nullptr);
}

const UnfinishedAnswer* Scheduler::FindUnfinished(const Request& request, GenerateRequest& call) {
  if (!request.may_go_on || request.session == nullptr || !request.session->unfinished) {
    return nullptr;
  }
  const UnfinishedAnswer& unfinished = *request.session->unfinished;
  const bool other =
      call.constraint != nullptr && call.constraint->digest() != unfinished.constraint->digest();
  if (other) return nullptr;
  call.constraint = unfinished.constraint;
  return &unfinished;
}

absl::Status Scheduler::MakeAnswers(Request& request) {
  GenerateWork& work = *request.generate();
  const EngineModel& model = config_.model;
  GenerateRequest& call = work.call;
  if (call.sampling.seed == 0 && !call.seed_given) call.sampling.seed = core_.random.Next();
  const Speculation speculation = call.output.speculation.value_or(config_.options.speculation);
  const UnfinishedAnswer* const unfinished = FindUnfinished(request, call);
  for (int i = 0; i < call.n; ++i) {
    work.answers.push_back(std::make_unique<RunningAnswer>(
        call, i, call.sampling.seed + static_cast<uint64_t>(i), model));
    RunningAnswer& answer = *work.answers.back();
    if (call.constraint != nullptr) {
      absl::Status status = answer.Constrain(matchers_, unfinished, config_.options.force_tokens);
      if (!status.ok()) return status;
    }
    if (speculation == Speculation::kNgram && model.can_undo()) answer.Speculate();
    if (request.session != nullptr && request.session->log) {
      const auto consumed = static_cast<size_t>(request.session->state.position);
      answer.ObserveEarlier(std::span(*request.session->log).first(consumed));
    }
    answer.ObservePrompt(request.tokens);
  }
  return absl::OkStatus();
}

void Scheduler::RestorePrefix(Request& request) {
  const bool begins = request.sequence->position() == 0 && !request.tokens.empty() &&
                      (request.generate() != nullptr || request.is(SessionWork::kOpen));
  if (!begins) return;
  if (request.cacheable == 0) return prefixes_.CountNotKept(PrefixLoss::kNotCacheable);
  StateHandle& state = request.sequence->state;
  const std::span<const int32_t> tokens = request.tokens;
  const int64_t most = std::min(request.cacheable, std::ssize(tokens) - 1);
  request.prefix =
      prefixes_.Begin(request.tenant, config_.model.VariantWith(state.layout),
                      tokens.first(static_cast<size_t>(most)), request.shared_tokens, state);
  const GenerateWork* work = request.generate();
  request.keeps_answer = !request.prefix.scope.empty() && request.session == nullptr &&
                         request.n_states == 1 && work->wants_tokens() && work->call.cache_answer;
  request.consumed = request.prefix_tokens = state.position;
  if (request.session == nullptr) return;
  request.session->Record(0, tokens.first(static_cast<size_t>(state.position)));
  core_.turns.CheckpointIfDue(*request.session, 0);  // there will be no earlier copy
}

void Scheduler::StartTurn(std::shared_ptr<Request> request) {
  request->cached_tokens = request->session->position();
  if (request->session->pending)
    request->tokens.insert(request->tokens.begin(), *request->session->pending);
  if (!FailIfDead(*request, config_.options.clock.steady())) Start(std::move(request));
}

bool Scheduler::RunIteration(Executor& executor) {
  const SteadyTime begin = config_.options.clock.steady();
  const absl::Duration forms_before = matchers_.time();
  std::vector<PlanItem> plan = ChoosePlan(begin);
  watch_.SetWork(builder_.work().answers, builder_.work().prompts, builder_.work().prompt_tokens);
  if (plan.empty()) return false;
  BatchRun run{.sequences = builder_.MakeSequences(plan)};
  executor.Execute(run);
  FailFailed(plan, run);
  bool any = false;
  for (size_t i = 0; i < plan.size(); ++i) {
    if (run.sequences[i].failure) continue;
    any = true;
    const BatchCandidate& candidate = builder_.candidates()[plan[i].candidate];
    if (candidate.answer != nullptr) {
      run.report.accepted_tokens += ApplyDraws(executor, candidate, run.sequences[i]);
    } else {
      ApplyPrefill(*candidate.request, run.sequences[i]);
    }
    MayCheckpoint(*candidate.request);
  }
  if (!any) return true;
  core_.copies.NoteBatch();
  size_t index = 0;
  std::erase_if(plan, [&](const PlanItem&) { return run.sequences[index++].failure.has_value(); });
  run.report.duration = TimeBetween(begin, config_.options.clock.steady());
  const absl::Duration forms = matchers_.time() - forms_before;
  planner_.Observe(builder_.candidates(), plan, run.report.duration - forms);
  config_.events.step(run.report);
  return true;
}

std::vector<PlanItem> Scheduler::ChoosePlan(SteadyTime now) {
  const std::span<const PlanItem> standing = planner_.Standing(now);
  if (standing.empty() || !builder_.Refresh(standing)) {
    builder_.Collect(running_, now);
    planner_.Choose(builder_.candidates(), now);
  }
  return planner_.Plan(builder_.candidates());
}

void Scheduler::FailFailed(std::span<const PlanItem> plan, const BatchRun& run) {
  for (size_t i = 0; i < plan.size(); ++i) {
    const std::optional<BatchSequence::Failure>& failure = run.sequences[i].failure;
    const BatchCandidate& candidate = builder_.candidates()[plan[i].candidate];
    if (!failure || candidate.request->ended) continue;
    if (failure->halfway) {
      finisher_.FailHalfway(*candidate.request, candidate.state->position, failure->status);
    } else {
      Fail(*candidate.request, FinishReason::kError, failure->status);
    }
  }
}

int32_t Scheduler::ApplyDraws(Executor& executor, const BatchCandidate& candidate,
                              BatchSequence& run) {
  Request& request = *candidate.request;
  RunningAnswer& answer = *candidate.answer;
  if (request.ended) return 0;  // by another of its answers
  StreamEvent event;
  const auto n_drafted = static_cast<int32_t>(run.drafted.size());
  // Where nothing was drawn another forced token follows.
  const int64_t n_forced = std::ssize(run.tokens) - (run.draws.empty() ? 0 : 1);
  answer.AddForced(n_forced, event);
  matchers_.CountForced(n_forced);
  if (run.draws.empty()) {
    if (run.finite) {
      EmitTokens(request, answer, std::move(event));
    } else {
      finisher_.FailNotANumber(request, candidate.state->position);
    }
    return 0;
  }
  int32_t n_kept = 0;
  // A draw after a drafted token that is not a number is left to the iteration that has this token
  // as the sequence's own.
  for (bool goes_on = true; goes_on && n_kept <= n_drafted && run.draws[n_kept].finite;) {
    model::Sampled& drawn = run.draws[n_kept];
    goes_on = n_kept < n_drafted && drawn.token_id == run.drafted[n_kept];
    ++n_kept;
    answer.AddDraw(std::move(drawn), event);
    goes_on = goes_on && !event.finished && answer.status().ok();
  }
  if (n_drafted > 0) {
    absl::Status status = executor.AcceptDrafts(run, std::max(n_kept - 1, 0));
    if (!status.ok()) {
      finisher_.FailHalfway(request, candidate.state->position, std::move(status));
      return 0;
    }
  }
  if (n_kept == 0) {
    finisher_.FailNotANumber(request, candidate.state->position);
    return 0;
  }
  answer.drafted += n_drafted;
  answer.accepted += n_kept - 1;
  EmitTokens(request, answer, std::move(event));
  return n_kept - 1;
}

void Scheduler::ApplyPrefill(Request& request, BatchSequence& run) {
  const int64_t n_tokens = std::ssize(run.tokens), begin = run.state->position - n_tokens;
  request.sequence->pending.reset();  // it was the first of the tokens
  if (request.session != nullptr) request.session->Record(begin, run.tokens);
  std::optional<int64_t> damaged_at;
  for (size_t i = 0; i < run.scores.size(); ++i) {
    std::vector<model::TokenScore>& rows = request.score() != nullptr
                                               ? request.score()->result.rows
                                               : request.generate()->prompt_scores;
    const model::TokenScore& row = rows.emplace_back(std::move(run.scores[i]));
    if (!row.finite && !damaged_at) damaged_at = begin + static_cast<int64_t>(i) + 1;
  }
  if (damaged_at) return finisher_.FailNotANumber(request, *damaged_at);
  request.consumed += n_tokens;
  if (request.consumed == request.prefix.next_stop()) {
    prefixes_.Keep(request.prefix,
                   std::span(request.tokens).first(static_cast<size_t>(request.consumed)),
                   request.sequence->state);
  }
  if (!request.prefilling()) FinishPrefill(request, &run);
}

void Scheduler::MayCheckpoint(Request& request) {
  if (request.session == nullptr || request.ended) return;
  if (request.generate() != nullptr || request.is(SessionWork::kOpen))
    core_.turns.CheckpointIfDue(*request.session, request.n_prefill - request.consumed);
  if (request.generate() != nullptr) core_.turns.PublishProgress(request);
}

void Scheduler::FinishPrefill(Request& request, BatchSequence* run) {
  request.prefilled = config_.options.clock.steady();
  if (request.score() != nullptr) return finisher_.FinishScore(request);
  const int64_t position = request.sequence->state.position;
  GenerateWork* const generate = request.generate();
  if (generate != nullptr && generate->call.output.prompt_scores) {
    generate->stream->Push({.prompt_scores = std::move(generate->prompt_scores)});
  }
  if (request.generate() == nullptr || !request.generate()->wants_tokens()) {
    if (run != nullptr && !run->finite) return finisher_.FailNotANumber(request, position);
    if (request.consumed < std::ssize(request.tokens))
      AppendTokens(request, *request.sequence, {&request.tokens.back(), 1});
    return finisher_.FinishPrompt(request);
  }
  GenerateWork& work = *request.generate();
  for (model::Sampled& drawn : run->draws) work.first.push_back(std::move(drawn));
  // All draws are from the same logits.
  if (!work.first.front().finite) return finisher_.FailNotANumber(request, position);
  work.answers.front()->sequence = request.sequence;
  if (work.answers.size() == 1) {
    BeginAnswers(request);
    return;
  }
  core_.copies.Add([this, request = request.shared_from_this()](
                       size_t& bytes) { return CopyPromptState(*request, bytes); },
                   /*at_once=*/false);
}

bool Scheduler::CopyPromptState(Request& request, size_t& bytes) {
  if (request.ended) return false;
  std::vector<std::unique_ptr<RunningAnswer>>& answers = request.generate()->answers;
  const auto begin = [&] {
    const bool more = BeginAnswers(request);
    if (more) bytes += config_.options.copy_bytes_per_iteration;  // goes on in the next iteration
    return more;
  };
  if (request.generate()->first.size() < answers.size()) return begin();
  const auto next =
      std::ranges::find(answers, nullptr, [](const auto& answer) { return answer->sequence; });
  absl::StatusOr<StateHandle> copy = core_.copies.CopyFor(
      request.client, [&] { return core_.admission.AcquirePromised(request); });
  if (!copy.ok()) {
    Fail(request, FinishReason::kError, copy.status());
    return false;
  }
  bytes += core_.pool.SnapshotBytes(*copy);
  (*next)->sequence = std::make_shared<Sequence>(Sequence{.state = *copy, .pending = {}});
  return *next != answers.back() || begin();
}

bool Scheduler::BeginAnswers(Request& request) {
  planner_.DropStanding();
  GenerateWork& work = *request.generate();
  if (work.first.size() == work.answers.size()) {
    config_.events.first_token(TimeBetween(request.arrival, config_.options.clock.steady()));
  }
  absl::Duration forms;
  while (!work.first.empty() && !request.ended && forms < kMostFormTime) {
    RunningAnswer& answer = *work.answers[work.answers.size() - work.first.size()];
    StreamEvent event;
    answer.AddDraw(std::move(work.first.front()), event);
    work.first.erase(work.first.begin());
    forms += answer.form_time();
    EmitTokens(request, answer, std::move(event));
  }
  return !work.first.empty() && !request.ended;
}

void Scheduler::AppendTokens(Request& request, Sequence& sequence,
                             std::span<const int32_t> tokens) {
  sequence.pending = tokens.back();
  if (request.session == nullptr) return;
  request.session->Record(request.session->state.position - (std::ssize(tokens) - 1), tokens);
}

void Scheduler::EmitTokens(Request& request, RunningAnswer& answer, StreamEvent event) {
  const std::vector<int32_t>& tokens = event.chunk->token_ids;
  AppendTokens(request, *answer.sequence, tokens);
  if (request.keeps_answer) {
    request.tokens.insert(request.tokens.end(), tokens.begin(), tokens.end());
  }
  config_.options.quotas->ChargeTokens(request.tenant, std::ssize(tokens));
  const SteadyTime now = config_.options.clock.steady();
  if (answer.generated() == 1) {
    answer.first_token = now;
  } else {
    // Tokens of one iteration share its time.
    const absl::Duration each = TimeBetween(answer.last_token, now) / std::ssize(tokens);
    for (size_t i = 0; i < tokens.size(); ++i) config_.events.next_token(each);
  }
  answer.last_token = now;
  std::optional<Finished> finished = std::exchange(event.finished, std::nullopt);
  request.generate()->stream->Push(std::move(event));
  if (finished) return finisher_.FinishAnswer(request, answer, *std::move(finished));
  if (!answer.status().ok()) return Fail(request, FinishReason::kError, answer.status());
  answer.Force();
}

void Scheduler::FailDead(SteadyTime now) {
  for (const std::shared_ptr<Request>& request : running_) {
    if (!request->ended) FailIfDead(*request, now);
  }
}

void Scheduler::FailAll(const absl::Status& status) {
  ending_ = status;
  for (const std::shared_ptr<Request>& request : running_) {
    if (!request->ended) Fail(*request, FinishReason::kError, status);
  }
}

bool Scheduler::EvictFrom(const std::string& client) {
  const auto gives = [&client](const std::shared_ptr<Request>& request) {
    if (request->ended) return false;
    if (request->session == nullptr)
      return request->hold != nullptr && request->hold->client() == client;
    // A session with files writes what it has consumed to the disk first.
    return request->session->hold->client() == client && !request->session->disk;
  };
  const auto last = std::find_if(running_.rbegin(), running_.rend(), gives);
  if (last == running_.rend()) return false;
  const std::shared_ptr<Request> request = *last;
  config_.events.rejected(RejectReason::kGaveWay);
  Fail(*request, FinishReason::kError,
       WithFacts(absl::ResourceExhaustedError(
                     "ended to make way: the server is full, this client has more than its part of "
                     "it, and another one had nothing"),
                 {.reason = RejectReason::kGaveWay}));
  return true;
}

void Scheduler::AddTo(EngineStats& stats) const {
  stats.prefixes = prefixes_.stats();
  stats.constraints = matchers_.stats();
  stats.row_seconds = planner_.row_seconds();
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
    if (request->in_session()) continue;  // the table counts it
    add(request->sequence.get());
    if (work == nullptr) continue;
    for (const std::unique_ptr<RunningAnswer>& answer : work->answers) {
      if (answer->sequence != request->sequence) add(answer->sequence.get());
    }
  }
}

void Scheduler::RemoveEnded() {
  if (!finisher_.ConsumeAnyEnded()) return;
  finisher_.KeepAnswers();
  std::erase_if(running_, [](const std::shared_ptr<Request>& request) { return request->ended; });
}

}  // namespace ovq::engine
