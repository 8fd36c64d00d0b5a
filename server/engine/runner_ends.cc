// What of the Runner ends jobs: gives back what they have, and tells who waits for them.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_facts.h"
#include "server/engine/runner.h"

namespace ovq {
namespace {

const Sequence* SequenceOf(const Job& job, const Completion* completion) {
  return completion != nullptr && completion->sequence ? completion->sequence.get()
                                                       : job.sequence.get();
}

}  // namespace

Usage Runner::UsageOf(const Job& job, const Completion* completion) const {
  const SteadyTime now = config_.options.clock.steady();
  Usage usage;
  usage.prompt_tokens = job.prompt_tokens;
  usage.cached_tokens = job.cached_tokens + job.prefix_tokens;
  if (completion != nullptr) {
    usage.generated_tokens = completion->generated();
    usage.drafted_tokens = completion->drafted;
    usage.accepted_tokens = completion->accepted;
  }
  const Sequence* const sequence = SequenceOf(job, completion);
  if (sequence != nullptr && sequence->state.layout != nullptr) {  // not given back before
    usage.state_bytes = static_cast<int64_t>(sequence->state.committed_bytes);
    usage.position = sequence->position();
    usage.merged_tokens =
        sequence->state.layout->MergedTokensAt(sequence->state.position, sequence->state.slot_cap);
  }
  usage.queue_time = TimeBetween(job.arrival, job.admitted.value_or(now));
  if (job.admitted) usage.prefill_time = TimeBetween(*job.admitted, job.prefilled.value_or(now));
  if (job.prefilled) usage.decode_time = TimeBetween(*job.prefilled, now);
  return usage;
}

std::optional<double> Runner::DictionaryFill(const Job& job, const Completion* completion) const {
  const Sequence* sequence = SequenceOf(job, completion);
  if (sequence == nullptr || sequence->state.base == nullptr) return std::nullopt;
  const StateHandle& state = sequence->state;
  if (!state.layout->has_slot_cap()) return std::nullopt;
  const int64_t live = state.layout->LiveSlotsAt(state.position, state.slot_cap);
  return static_cast<double>(live) / state.slot_cap;
}

void Runner::SetEnded(Job& job) {
  job.ended = any_ended_ = true;
  chosen_ = false;
}

void Runner::ReleaseStates(Job& job, SessionStore::Then then) {
  admission_.DropPromised(job);
  GenerateWork* work = job.generate();
  if (job.session != nullptr && work != nullptr) return sessions_.EndTurn(job, std::move(then));
  if (job.rewind() != nullptr) {
    sessions_.Unrewound(job);
  } else if (job.session != nullptr && job.wake() == nullptr) {
    sessions_.Release(*job.session);
  } else if (job.session == nullptr) {
    if (job.sequence != nullptr) pool_.Release(job.sequence->state);
    if (work != nullptr) {
      for (const std::unique_ptr<Completion>& completion : work->completions) {
        if (completion->sequence != nullptr) pool_.Release(completion->sequence->state);
      }
    }
    job.hold.reset();
  }
  then(absl::OkStatus());
}

void Runner::Release(Job& job, FinishReason reason, const Completion* last,
                     SessionStore::Then tell) {
  RequestReport report{.reason = reason,
                       .usage = UsageOf(job, last),
                       .score = job.score() != nullptr,
                       .dictionary_fill = DictionaryFill(job, last)};
  if (const GenerateWork* work = job.generate()) {
    report.usage.generated_tokens = 0;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      report.usage.generated_tokens += completion->generated();
    }
  }
  SetEnded(job);
  const bool counts = job.generate() != nullptr || job.score() != nullptr;
  ReleaseStates(job, [this, report, counts, arrival = job.arrival,
                      tell = std::move(tell)](absl::Status status) mutable {
    report.total = TimeBetween(arrival, config_.options.clock.steady());
    if (counts) config_.events.request_finished(report);
    tell(std::move(status));
    admission_.Leave();
  });
}

void Runner::FinishCompletion(Job& job, Completion& completion, Finished finished) {
  GenerateWork& work = *job.generate();
  completion.done = true;
  chosen_ = false;
  finished.usage = UsageOf(job, &completion);
  if (completion.generated() > 1) {
    config_.events.time_per_token(TimeBetween(completion.first_token, completion.last_token) /
                                  (completion.generated() - 1));
  }
  const bool last = std::ranges::all_of(work.completions, [](const auto& c) { return c->done; });
  if (last) {
    return Release(job, finished.reason, &completion,
                   [stream = work.stream, finished = std::move(finished)](absl::Status status) {
                     if (status.ok()) stream->Push({.finished = finished});
                     stream->Close(std::move(status));
                   });
  }
  if (completion.sequence != nullptr) {
    pool_.Release(completion.sequence->state);
    job.hold->ReleasePart(1, job.reserve_bytes);
  }
  work.stream->Push({.finished = std::move(finished)});
}

void Runner::FinishPrompt(Job& job) {
  if (job.generate() == nullptr) {
    SetEnded(job);
    if (job.wake() != nullptr) {
      sessions_.Woken(job, absl::OkStatus());
      return admission_.Leave();
    }
    // What answers when it is on disk.
    const auto leaving = [this](auto done) {
      return [this, done = std::move(done)](auto result) {
        done(std::move(result));
        admission_.Leave();
      };
    };
    if (RewindWork* work = job.rewind()) return sessions_.Rewound(job, leaving(work->done));
    return sessions_.Opened(job, leaving(std::get<OpenWork>(job.work).done));
  }
  for (const std::unique_ptr<Completion>& completion : job.generate()->completions) {
    FinishCompletion(job, *completion,
                     {.index = completion->index(), .reason = FinishReason::kLength});
  }
}

void Runner::FinishScore(Job& job) {
  ScoreWork& work = *job.score();
  work.result.state_bytes = static_cast<int64_t>(job.sequence->state.committed_bytes);
  Release(job, FinishReason::kLength, nullptr,
          [&work](const absl::Status&) { work.done(std::move(work.result)); });
}

void Runner::Fail(Job& job, FinishReason reason, absl::Status status) {
  GenerateWork* work = job.generate();
  std::vector<StreamEvent> events;  // usage is taken before the states go
  if (work != nullptr && reason == FinishReason::kCancelled) {
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->done) continue;
      events.emplace_back().finished = Finished{
          .index = completion->index(), .reason = reason, .usage = UsageOf(job, completion.get())};
    }
  }
  if (work != nullptr && work->blocked_since) {
    config_.events.stream_blocked(
        TimeBetween(*work->blocked_since, config_.options.clock.steady()));
  }
  auto tell = [this, &job, events = std::move(events), status = std::move(status),
               stream = work != nullptr ? work->stream : nullptr](absl::Status saved) mutable {
    if (!saved.ok()) status = std::move(saved);
    if (stream != nullptr) {
      for (StreamEvent& event : events) stream->Push(std::move(event));
      stream->Close(std::move(status));
    } else if (ScoreWork* score = job.score()) {
      score->done(std::move(status));
    } else if (RewindWork* rewind = job.rewind()) {
      rewind->done(std::move(status));
    } else if (job.wake() != nullptr) {
      sessions_.Woken(job, std::move(status));
    } else {
      std::get<OpenWork>(job.work).done(std::move(status));
    }
  };
  Release(job, reason, nullptr, std::move(tell));
}

bool Runner::GiveWay(const std::string& client) {
  const auto gives = [&client](const std::shared_ptr<Job>& job) {
    if (job->ended) return false;
    if (job->session == nullptr) return job->hold != nullptr && job->hold->client() == client;
    // Else what it has read goes to the disk first.
    return job->session->hold->client() == client && !job->session->disk;
  };
  const auto last = std::find_if(jobs_.rbegin(), jobs_.rend(), gives);
  if (last == jobs_.rend()) return false;
  const std::shared_ptr<Job> job = *last;
  config_.events.rejected(RejectReason::kGaveWay);
  Fail(*job, FinishReason::kError,
       WithFacts(absl::ResourceExhaustedError(
                     "ended to make way: the server is full, this client has more than its part of "
                     "it, and another one had nothing"),
                 {.reason = RejectReason::kGaveWay}));
  return true;
}

void Runner::FailDamaged(Job& job, int64_t position) {
  constexpr std::string_view kWhat = "the model's output was not a number";
  config_.events.not_a_number(position);
  FailDamaged(job, position, kWhat,
              absl::InternalError(
                  absl::StrCat("the model's output is not a number at position ", position)));
}

void Runner::FailHalfway(Job& job, int64_t position, absl::Status status) {
  FailDamaged(job, position, "the device had no memory for a step", std::move(status));
}

void Runner::FailThoseOf(const Step& step) {
  for (const Step::Failed& failed : step.failed()) {
    Job& job = *owners_[static_cast<size_t>(failed.id)];
    if (job.ended) continue;
    if (failed.halfway) {
      const int64_t position = sequences_[static_cast<size_t>(failed.id)].state->position;
      FailHalfway(job, position, failed.status);
    } else {
      Fail(job, FinishReason::kError, failed.status);
    }
  }
}

void Runner::FailDamaged(Job& job, int64_t position, std::string_view what, absl::Status status) {
  prefixes_.Forget(job.prefix);
  // One that is not open yet ends, and what was to be read again leaves a session as it was.
  const bool turn = job.session != nullptr && job.generate() != nullptr;
  if (turn) sessions_.SetDamaged(*job.session, position, what);
  Fail(job, FinishReason::kError, std::move(status));
}

bool Runner::FailIfDead(Job& job, SteadyTime now) {
  absl::Status death = DeathOf(job, now);
  if (death.ok()) return false;
  const bool cancelled = absl::IsCancelled(death);
  const bool told = cancelled && job.generate() != nullptr && job.cancel_signal()->cancelled();
  Fail(job, cancelled ? FinishReason::kCancelled : FinishReason::kDeadline, std::move(death));
  if (told) {
    config_.events.cancel_released(
        TimeBetween(*job.cancel_signal()->time(), config_.options.clock.steady()));
  }
  return true;
}

}  // namespace ovq
