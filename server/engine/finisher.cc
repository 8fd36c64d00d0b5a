#include "server/engine/finisher.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace ovq {
namespace {

const Sequence* SequenceOf(const Job& job, const Completion* completion) {
  return completion != nullptr && completion->sequence ? completion->sequence.get()
                                                       : job.sequence.get();
}

}  // namespace

Usage Finisher::UsageOf(const Job& job, const Completion* completion) const {
  const SteadyTime now = config_.options.clock.steady();
  Usage usage;
  usage.prompt_tokens = job.prompt_tokens;
  usage.cached_tokens = job.cached_tokens;
  if (completion != nullptr) usage.generated_tokens = completion->generated();
  if (const Sequence* sequence = SequenceOf(job, completion)) {
    usage.state_bytes = static_cast<int64_t>(sequence->state.committed_bytes);
    usage.position = sequence->position();
  }
  usage.queue_time = TimeBetween(job.arrival, job.admitted.value_or(now));
  if (job.admitted) usage.prefill_time = TimeBetween(*job.admitted, job.prefilled.value_or(now));
  if (job.prefilled) usage.decode_time = TimeBetween(*job.prefilled, now);
  return usage;
}

std::optional<double> Finisher::DictionaryFill(const Job& job, const Completion* completion) const {
  const StateLayout& layout = *config_.model.layout;
  const Sequence* sequence = SequenceOf(job, completion);
  if (sequence == nullptr || sequence->state.base == nullptr || !layout.has_slot_cap()) {
    return std::nullopt;
  }
  const StateHandle& state = sequence->state;
  return static_cast<double>(layout.LiveSlotsAt(state.position, state.slot_cap)) / state.slot_cap;
}

void Finisher::ReleaseStates(Job& job) {
  admission_.DropPromised(job);
  GenerateWork* work = job.generate();
  if (job.session != nullptr) {
    return work != nullptr ? sessions_.EndTurn(job) : sessions_.Release(*job.session);
  }
  if (job.sequence != nullptr) pool_.Release(job.sequence->state);
  if (work != nullptr) {
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->sequence != nullptr) pool_.Release(completion->sequence->state);
    }
  }
  job.hold.Release();
}

void Finisher::Release(Job& job, FinishReason reason, const Completion* last) {
  RequestReport report{.reason = reason,
                       .usage = UsageOf(job, last),
                       .total = TimeBetween(job.arrival, config_.options.clock.steady()),
                       .score = job.score() != nullptr,
                       .dictionary_fill = DictionaryFill(job, last)};
  if (const GenerateWork* work = job.generate()) {
    report.usage.generated_tokens = 0;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      report.usage.generated_tokens += completion->generated();
    }
  }
  ReleaseStates(job);
  if (!std::holds_alternative<OpenWork>(job.work)) config_.events.request_finished(report);
}

void Finisher::MarkEnded(Job& job) {
  job.ended = true;
  admission_.Leave();
}

void Finisher::FinishCompletion(Job& job, Completion& completion, Finished finished) {
  GenerateWork& work = *job.generate();
  completion.done = true;
  finished.usage = UsageOf(job, &completion);
  if (completion.generated() > 1) {
    config_.events.time_per_token(TimeBetween(completion.first_token, completion.last_token) /
                                  (completion.generated() - 1));
  }
  const bool last = std::ranges::all_of(work.completions, [](const auto& c) { return c->done; });
  if (last) {
    Release(job, finished.reason, &completion);
  } else if (completion.sequence != nullptr) {
    pool_.Release(completion.sequence->state);
    job.hold.ReleasePart(1, job.reserve_bytes);
  }
  work.stream->Push({.finished = std::move(finished)});
  if (!last) return;
  work.stream->Close(absl::OkStatus());
  MarkEnded(job);
}

void Finisher::FinishPrompt(Job& job) {
  if (OpenWork* work = std::get_if<OpenWork>(&job.work)) {
    work->done(sessions_.Opened(job));
    MarkEnded(job);
    return;
  }
  for (const std::unique_ptr<Completion>& completion : job.generate()->completions) {
    FinishCompletion(job, *completion,
                     {.index = completion->index(), .reason = FinishReason::kLength});
  }
}

void Finisher::FinishScore(Job& job) {
  ScoreWork& work = *job.score();
  work.result.state_bytes = static_cast<int64_t>(job.sequence->state.committed_bytes);
  Release(job, FinishReason::kLength, nullptr);
  work.done(std::move(work.result));
  MarkEnded(job);
}

void Finisher::Fail(Job& job, FinishReason reason, absl::Status status) {
  GenerateWork* work = job.generate();
  std::vector<StreamEvent> events;  // usage is taken before the states go
  if (work != nullptr && reason == FinishReason::kCancelled) {
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->done) continue;
      events.emplace_back().finished = Finished{
          .index = completion->index(), .reason = reason, .usage = UsageOf(job, completion.get())};
    }
  }
  Release(job, reason, nullptr);
  if (work != nullptr) {
    if (work->blocked_since) {
      config_.events.stream_blocked(
          TimeBetween(*work->blocked_since, config_.options.clock.steady()));
    }
    for (StreamEvent& event : events) work->stream->Push(std::move(event));
    work->stream->Close(std::move(status));
  } else if (ScoreWork* score = job.score()) {
    score->done(std::move(status));
  } else {
    std::get<OpenWork>(job.work).done(std::move(status));
  }
  MarkEnded(job);
}

bool IsDead(const Job& job, SteadyTime now) {
  const CancelSignal* cancel = job.cancel_signal();
  return job.deadline <= now || (cancel != nullptr && cancel->cancelled()) ||
         (job.session != nullptr && job.session->deleted);
}

bool Finisher::FailIfDead(Job& job, SteadyTime now) {
  if (job.session != nullptr && job.session->deleted) {
    Fail(job, FinishReason::kCancelled, absl::CancelledError("the session was deleted"));
    return true;
  }
  const CancelSignal* cancel = job.cancel_signal();
  const std::optional<SteadyTime> cancelled = cancel != nullptr ? cancel->time() : std::nullopt;
  if (cancelled) {
    Fail(job, FinishReason::kCancelled, absl::CancelledError("cancelled by the caller"));
    if (job.generate() != nullptr) {
      config_.events.cancel_released(TimeBetween(*cancelled, config_.options.clock.steady()));
    }
    return true;
  }
  if (job.deadline > now) return false;
  const char* where = !job.admitted      ? "in the queue"
                      : job.prefilling() ? "while absorbing the prompt"
                                         : "while generating";
  Fail(job, FinishReason::kDeadline,
       absl::DeadlineExceededError(std::string("deadline passed ") + where));
  return true;
}

}  // namespace ovq
