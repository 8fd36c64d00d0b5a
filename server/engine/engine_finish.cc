// How jobs end. Memory is given back and the session is free again before anyone is told, so that
// whoever reads the last event can go on at once.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "server/engine/engine_loop.h"

namespace ovq {

namespace {

const Session* SessionOf(const Job& job, const Completion* completion) {
  return completion != nullptr && completion->session ? completion->session.get()
                                                      : job.session.get();
}

}  // namespace

Usage Engine::Loop::UsageOf(const Job& job, const Completion* completion, absl::Time now) const {
  Usage usage;
  usage.prompt_tokens = job.prompt_tokens;
  usage.cached_tokens = job.cached_tokens;
  if (completion != nullptr) usage.generated_tokens = completion->generated();
  if (const Session* session = SessionOf(job, completion)) {
    usage.state_bytes = static_cast<int64_t>(session->state.committed_bytes);
    usage.position = session->position();
  }
  const bool admitted = job.admitted != absl::UnixEpoch();
  const bool prefilled = job.prefilled != absl::UnixEpoch();
  usage.queue_time = (admitted ? job.admitted : now) - job.arrival;
  if (admitted) usage.prefill_time = (prefilled ? job.prefilled : now) - job.admitted;
  if (prefilled) usage.decode_time = now - job.prefilled;
  return usage;
}

std::optional<double> Engine::Loop::DictionaryFill(const Job& job,
                                                   const Completion* completion) const {
  const Session* session = SessionOf(job, completion);
  if (session == nullptr || session->state.base == nullptr || !layout_.has_slot_cap()) {
    return std::nullopt;
  }
  const StateHandle& state = session->state;
  return static_cast<double>(layout_.LiveSlotsAt(state.position, state.slot_cap)) / state.slot_cap;
}

void Engine::Loop::ReleaseStates(Job& job) {
  promised_states_ -= std::exchange(job.unforked_states, 0);
  GenerateWork* work = job.generate();
  if (work == nullptr || !work->named_session) {
    if (job.session != nullptr) ReleaseSession(*job.session);
    if (work != nullptr) {
      for (const std::unique_ptr<Completion>& completion : work->completions) {
        if (completion->session != nullptr) pool_.Release(completion->session->state);
      }
    }
    job.hold.Release();
    return;
  }
  Session& session = *job.session;
  const int64_t generated = work->completions.empty() ? 0 : work->completions[0]->generated();
  session.generated_tokens_total += generated;
  session.prompt_tokens_total += session.position() - job.cached_tokens - generated;
  session.last_used = absl::Now();
  bool deleted;
  {
    std::lock_guard lock(mutex_);
    session.busy = false;
    deleted = session.deleted;
  }
  next_expiry_ = std::min(next_expiry_, session.expires());
  if (deleted) ReleaseSession(session);
}

void Engine::Loop::Report(const Job& job, RequestReport report) {
  if (!events_.request_finished) return;
  report.total = absl::Now() - job.arrival;
  report.score = job.generate() == nullptr;
  if (const GenerateWork* work = job.generate()) {
    report.usage.generated_tokens = 0;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      report.usage.generated_tokens += completion->generated();
    }
  }
  events_.request_finished(report);
}

void Engine::Loop::MarkEnded(Job& job) {
  job.ended = true;
  std::lock_guard lock(mutex_);
  if (--unfinished_ == 0) all_ended_.notify_all();
}

void Engine::Loop::FinishCompletion(Job& job, Completion& completion, Finished finished) {
  GenerateWork& work = *job.generate();
  completion.done = true;
  finished.usage = UsageOf(job, &completion, absl::Now());
  const RequestReport report{.reason = finished.reason,
                             .usage = finished.usage,
                             .dictionary_fill = DictionaryFill(job, &completion)};
  if (completion.generated() > 1 && events_.time_per_token) {
    events_.time_per_token((completion.last_token - completion.first_token) /
                           (completion.generated() - 1));
  }
  bool last = true;
  for (const std::unique_ptr<Completion>& other : work.completions) last &= other->done;
  if (last) {
    ReleaseStates(job);
  } else if (completion.session != nullptr) {
    pool_.Release(completion.session->state);
    job.hold.ReleasePart(1, job.reserve_bytes);
  }
  StreamEvent event;
  event.finished = std::move(finished);
  if (!last) {
    work.stream->Push(std::move(event));
    return;
  }
  Report(job, report);
  work.stream->SetWake(nullptr);
  work.stream->Push(std::move(event));
  work.stream->Close(absl::OkStatus());
  MarkEnded(job);
}

void Engine::Loop::FinishAbsorbing(Job& job) {
  if (AbsorbWork* work = job.absorb()) {
    Session& session = *job.session;
    session.prompt_tokens_total = job.prompt_tokens;
    session.last_used = absl::Now();
    const SessionInfo info = DescribeSession(session, layout_);
    PublishSession(job.session);
    work->done(info);
    MarkEnded(job);
    return;
  }
  for (const std::unique_ptr<Completion>& completion : job.generate()->completions) {
    Finished finished;
    finished.index = completion->index();
    finished.reason = FinishReason::kLength;
    FinishCompletion(job, *completion, std::move(finished));
  }
}

void Engine::Loop::FinishScore(Job& job) {
  ScoreWork& work = *job.score();
  const Usage usage = UsageOf(job, nullptr, absl::Now());
  work.result.state_bytes = usage.state_bytes;
  const RequestReport report{.reason = FinishReason::kLength,
                             .usage = usage,
                             .dictionary_fill = DictionaryFill(job, nullptr)};
  ReleaseStates(job);
  Report(job, report);
  work.done(std::move(work.result));
  MarkEnded(job);
}

void Engine::Loop::Fail(Job& job, FinishReason reason, const absl::Status& status) {
  const absl::Time now = absl::Now();
  GenerateWork* work = job.generate();
  const RequestReport report{.reason = reason,
                             .usage = UsageOf(job, nullptr, now),
                             .dictionary_fill = DictionaryFill(job, nullptr)};
  if (work == nullptr) {
    ReleaseStates(job);
    if (ScoreWork* score = job.score()) {
      Report(job, report);
      score->done(status);
    } else {
      job.absorb()->done(status);
    }
    MarkEnded(job);
    return;
  }
  std::vector<StreamEvent> events;  // usage is taken before the states go
  for (const std::unique_ptr<Completion>& completion : work->completions) {
    if (completion->done || reason != FinishReason::kCancelled) continue;
    events.emplace_back().finished = Finished{.index = completion->index(),
                                              .reason = reason,
                                              .matched_stop = {},
                                              .matched_token_id = std::nullopt,
                                              .usage = UsageOf(job, completion.get(), now)};
  }
  ReleaseStates(job);
  if (work->blocked_since && events_.stream_blocked) {
    events_.stream_blocked(now - *work->blocked_since);
  }
  Report(job, report);
  work->stream->SetWake(nullptr);
  for (StreamEvent& event : events) work->stream->Push(std::move(event));
  work->stream->Close(status);
  MarkEnded(job);
}

}  // namespace ovq
