// One step: plan, batch, forward, and what follows for every sequence in it.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "base/check.h"
#include "server/engine/engine_loop.h"
#include "server/engine/validate.h"

namespace ovq {

bool Engine::Loop::WantsToken(const Job& job) const {
  return job.generate() != nullptr && job.generate()->request.stop.max_tokens > 0;
}

bool Engine::Loop::Step() {
  CollectLanes();
  const std::vector<PlanItem> plan = PlanStep(candidates_, options_.max_batch_tokens, steps_);
  if (plan.empty()) return false;
  const absl::Time begin = absl::Now();
  StepReport report;
  FillBatch(plan, report);

  {
    ScratchScope scratch(*context_);
    TensorView logits = model_.forward(batch_, *context_, scratch);
    logits.shape = {static_cast<int64_t>(batch_.logit_rows.size()), model_.vocab_size};
    reader_.Read(*context_, logits);  // the step's only wait for the device
  }
  Advance(plan);
  reader_.Clear();  // what a score asked for may be large
  ++steps_;
  report.duration = absl::Now() - begin;
  if (events_.step) events_.step(report);
  return true;
}

void Engine::Loop::CollectLanes() {
  lanes_.clear();
  candidates_.clear();
  const auto add = [&](Job& job, Completion* completion, int64_t prefill_tokens, bool parked) {
    candidates_.push_back({.id = static_cast<int>(lanes_.size()),
                           .prefill_tokens = prefill_tokens,
                           .arrival = job.order,
                           .parked = parked});
    lanes_.push_back({&job, completion});
  };
  for (const std::shared_ptr<Job>& job : running_) {
    if (job->ended) continue;
    if (job->prefilling()) {
      add(*job, nullptr, job->n_feed - job->fed, false);
      continue;
    }
    GenerateWork& work = *job->generate();  // nothing else lives on after its rows
    const bool full = work.stream->full();
    if (full && !work.blocked_since) work.blocked_since = absl::Now();
    if (!full && work.blocked_since) {
      if (events_.stream_blocked) events_.stream_blocked(absl::Now() - *work.blocked_since);
      work.blocked_since.reset();
    }
    // All its completions stand at one position.
    for (const std::unique_ptr<Completion>& completion : work.completions) {
      if (completion->done) continue;
      const int64_t next = completion->session->state.position + 1;
      if (absl::Status status = CheckPosition(layout_, next); !status.ok()) {
        Fail(*job, FinishReason::kError, status);
        break;
      }
      add(*job, completion.get(), 0, full);
    }
  }
}

int32_t Engine::Loop::WantedLogits(Job& job, int32_t n_rows) const {
  if (job.score() != nullptr) return n_rows;
  return WantsToken(job) && job.fed + n_rows == job.n_feed ? 1 : 0;
}

void Engine::Loop::FillBatch(std::span<const PlanItem> plan, StepReport& report) {
  batch_.Clear();
  reader_.Clear();
  for (const PlanItem& item : plan) {
    const auto [job, completion] = lanes_[item.id];
    Session& session = completion != nullptr ? *completion->session : *job->session;
    const int64_t start = session.state.position;
    const auto first_row = static_cast<int64_t>(batch_.logit_rows.size());
    CountUpdates(session.state, item.n_rows, report);
    pool_.Grow(session.state, start + item.n_rows);
    if (completion != nullptr) {
      batch_.Add({&*session.pending, 1}, start, session.state.slot_cap, session.state.base, 1);
      completion->WantDraw(reader_, first_row, start + 1);
      report.decode_rows += 1;
    } else {
      const std::span<const int32_t> rows(job->rows.data() + job->fed,
                                          static_cast<size_t>(item.n_rows));
      batch_.Add(rows, start, session.state.slot_cap, session.state.base,
                 WantedLogits(*job, item.n_rows));
      WantResults(*job, item.n_rows, first_row);
      report.prefill_rows += item.n_rows;
    }
  }
}

// What n_rows more do to a dictionary follows from the positions: a chunk's update takes up all its
// tokens, as many of them as new centroids as the law of growth says.
void Engine::Loop::CountUpdates(const StateHandle& state, int32_t n_rows,
                                StepReport& report) const {
  const int64_t end = state.position + n_rows;
  const int64_t tokens = layout_.DictionaryTokens(end) - layout_.DictionaryTokens(state.position);
  if (tokens == 0) return;
  const int64_t inserts = layout_.LiveSlotsAt(end, state.slot_cap) -
                          layout_.LiveSlotsAt(state.position, state.slot_cap);
  report.dictionary_inserts += inserts;
  report.dictionary_merges += tokens - inserts;
}

// What a job's rows from job.fed on are to give; first_row: of their logits.
void Engine::Loop::WantResults(Job& job, int32_t n_rows, int64_t first_row) {
  if (const ScoreWork* work = job.score()) {
    for (int32_t i = 0; i < n_rows; ++i) {
      const size_t next = static_cast<size_t>(job.fed + i) + 1;
      reader_.WantScore(first_row + i,
                        next < job.rows.size() ? std::optional(job.rows[next]) : std::nullopt,
                        work->request.top_logprobs);
    }
  } else if (WantedLogits(job, n_rows) > 0) {
    for (const std::unique_ptr<Completion>& completion : job.generate()->completions) {
      completion->WantDraw(reader_, first_row, job.session->state.position);
    }
  }
}

void Engine::Loop::Advance(std::span<const PlanItem> plan) {
  for (const PlanItem& item : plan) {
    const auto [job, completion] = lanes_[item.id];
    Session& session = completion != nullptr ? *completion->session : *job->session;
    session.pending.reset();  // it was the first of the rows
    if (completion != nullptr) {
      Draw(*job, *completion);
    } else {
      if (job->score() != nullptr) ScoreRows(*job, item.n_rows);
      job->fed += item.n_rows;
      if (!job->prefilling()) FinishPrefill(*job);
    }
  }
}

void Engine::Loop::FinishPrefill(Job& job) {
  job.prefilled = absl::Now();
  if (job.score() != nullptr) {
    FinishScore(job);
  } else if (!WantsToken(job)) {
    job.session->pending = job.rows.back();
    FinishAbsorbing(job);
  } else {
    Fork(job);
    if (events_.first_token) events_.first_token(absl::Now() - job.arrival);
    for (const std::unique_ptr<Completion>& completion : job.generate()->completions) {
      Draw(job, *completion);
    }
  }
}

void Engine::Loop::Fork(Job& job) {
  for (const std::unique_ptr<Completion>& completion : job.generate()->completions) {
    if (completion->index() == 0) {
      completion->session = job.session;
      continue;
    }
    StateHandle& first = job.session->state;
    pool_.ShrinkReservation(first, first.reserved_bytes - job.reserve_bytes);
    absl::StatusOr<StateHandle> state = pool_.Clone(first, job.reserve_bytes);
    Check(state.ok(), "the bytes of a promised state were given back just before");
    completion->session = std::make_shared<Session>();
    completion->session->state = *state;
    --job.unforked_states;
    --promised_states_;
  }
}

void Engine::Loop::Draw(Job& job, Completion& completion) {
  Session& session = *completion.session;
  StreamEvent event = completion.Drawn(reader_.NextDraw());
  session.pending = event.chunk->token_ids.front();
  options_.quotas->ChargeTokens(job.tenant, 1);
  const absl::Time now = absl::Now();
  if (completion.generated() == 1) completion.first_token = now;
  if (completion.generated() > 1 && events_.next_token) {
    events_.next_token(now - completion.last_token);
  }
  completion.last_token = now;
  std::optional<Finished> finished = std::exchange(event.finished, std::nullopt);
  job.generate()->stream->Push(std::move(event));
  if (finished) FinishCompletion(job, completion, *std::move(finished));
}

void Engine::Loop::ScoreRows(Job& job, int32_t n_rows) {
  ScoreWork& work = *job.score();
  for (int32_t i = 0; i < n_rows; ++i) {
    RowScore score = reader_.NextScore();
    if (score.logprob) work.result.logprobs.push_back(*score.logprob);
    if (work.request.top_logprobs > 0) work.result.top.push_back(std::move(score.top));
  }
}

}  // namespace ovq
