// What of the Scheduler ends requests: gives back what they have, and tells who waits for them.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/error_facts.h"
#include "server/engine/scheduler.h"

namespace ovq {
namespace {

const Sequence* FindSequence(const Request& request, const Completion* completion) {
  return completion != nullptr && completion->sequence ? completion->sequence.get()
                                                       : request.sequence.get();
}

}  // namespace

Usage Scheduler::MakeUsage(const Request& request, const Completion* completion) const {
  const SteadyTime now = config_.options.clock.steady();
  Usage usage;
  usage.prompt_tokens = request.prompt_tokens;
  usage.cached_tokens = request.cached_tokens + request.prefix_tokens;
  if (completion != nullptr) {
    usage.generated_tokens = completion->generated();
    usage.drafted_tokens = completion->drafted;
    usage.accepted_tokens = completion->accepted;
  }
  const Sequence* const sequence = FindSequence(request, completion);
  if (sequence != nullptr && sequence->state.layout != nullptr) {  // not given back before
    usage.state_bytes = static_cast<int64_t>(sequence->state.committed_bytes);
    usage.position = sequence->position();
    usage.merged_tokens =
        sequence->state.layout->MergedTokensAt(sequence->state.position, sequence->state.slot_cap);
  }
  usage.queue_time = TimeBetween(request.arrival, request.admitted.value_or(now));
  if (request.admitted)
    usage.prefill_time = TimeBetween(*request.admitted, request.prefilled.value_or(now));
  if (request.prefilled) usage.decode_time = TimeBetween(*request.prefilled, now);
  return usage;
}

std::optional<double> Scheduler::DictionaryFill(const Request& request,
                                                const Completion* completion) const {
  const Sequence* sequence = FindSequence(request, completion);
  if (sequence == nullptr || sequence->state.base == nullptr) return std::nullopt;
  const StateHandle& state = sequence->state;
  if (!state.layout->has_slot_cap()) return std::nullopt;
  const int64_t live = state.layout->LiveSlotsAt(state.position, state.slot_cap);
  return static_cast<double>(live) / state.slot_cap;
}

void Scheduler::SetEnded(Request& request) {
  request.ended = any_ended_ = true;
  chosen_ = false;
}

void Scheduler::ReleaseStates(Request& request, StatusCallback then) {
  admission_.DropPromised(request);
  GenerateWork* work = request.generate();
  if (request.session != nullptr && work != nullptr)
    return sessions_.EndTurn(request, std::move(then));
  if (request.session == nullptr) {
    if (request.sequence != nullptr) pool_.Release(request.sequence->state);
    if (work != nullptr) {
      for (const std::unique_ptr<Completion>& completion : work->completions) {
        if (completion->sequence != nullptr) pool_.Release(completion->sequence->state);
      }
    }
    request.hold.reset();
  }
  then(absl::OkStatus());
}

void Scheduler::Release(Request& request, FinishReason reason, const Completion* last,
                        StatusCallback tell) {
  RequestReport report{.reason = reason,
                       .usage = MakeUsage(request, last),
                       .score = request.score() != nullptr,
                       .dictionary_fill = DictionaryFill(request, last)};
  if (const GenerateWork* work = request.generate()) {
    report.usage.generated_tokens = 0;
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      report.usage.generated_tokens += completion->generated();
    }
  }
  SetEnded(request);
  const bool counts = request.generate() != nullptr || request.score() != nullptr;
  ReleaseStates(request, [this, report, counts, arrival = request.arrival,
                          tell = std::move(tell)](absl::Status status) mutable {
    report.total = TimeBetween(arrival, config_.options.clock.steady());
    if (counts) config_.events.request_finished(report);
    tell(std::move(status));
    admission_.Leave();
  });
}

void Scheduler::FinishCompletion(Request& request, Completion& completion, Finished finished) {
  GenerateWork& work = *request.generate();
  completion.done = true;
  chosen_ = false;
  finished.usage = MakeUsage(request, &completion);
  if (completion.generated() > 1) {
    config_.events.time_per_token(TimeBetween(completion.first_token, completion.last_token) /
                                  (completion.generated() - 1));
  }
  const bool last = std::ranges::all_of(work.completions, [](const auto& c) { return c->done; });
  if (last) {
    return Release(request, finished.reason, &completion,
                   [stream = work.stream, finished = std::move(finished)](absl::Status status) {
                     if (status.ok()) stream->Push({.finished = finished});
                     stream->Close(std::move(status));
                   });
  }
  if (completion.sequence != nullptr) {
    pool_.Release(completion.sequence->state);
    request.hold->ReleasePart(1, request.reserve_bytes);
  }
  work.stream->Push({.finished = std::move(finished)});
}

void Scheduler::FinishPrompt(Request& request) {
  if (request.generate() == nullptr) {
    SetEnded(request);
    return request.on_end(request, absl::OkStatus());
  }
  for (const std::unique_ptr<Completion>& completion : request.generate()->completions) {
    FinishCompletion(request, *completion,
                     {.index = completion->index(), .reason = FinishReason::kLength});
  }
}

void Scheduler::FinishScore(Request& request) {
  ScoreWork& work = *request.score();
  work.result.state_bytes = static_cast<int64_t>(request.sequence->state.committed_bytes);
  Release(request, FinishReason::kLength, nullptr,
          [&work](const absl::Status&) { work.done(std::move(work.result)); });
}

void Scheduler::Fail(Request& request, FinishReason reason, absl::Status status) {
  if (request.on_end != nullptr) {
    SetEnded(request);
    return request.on_end(request, std::move(status));
  }
  GenerateWork* work = request.generate();
  std::vector<StreamEvent> events;  // usage is taken before the states go
  if (work != nullptr && reason == FinishReason::kCancelled) {
    for (const std::unique_ptr<Completion>& completion : work->completions) {
      if (completion->done) continue;
      events.emplace_back().finished = Finished{.index = completion->index(),
                                                .reason = reason,
                                                .usage = MakeUsage(request, completion.get())};
    }
  }
  if (work != nullptr && work->blocked_since) {
    config_.events.stream_blocked(
        TimeBetween(*work->blocked_since, config_.options.clock.steady()));
  }
  auto tell = [&request, events = std::move(events), status = std::move(status),
               stream = work != nullptr ? work->stream : nullptr](absl::Status saved) mutable {
    if (!saved.ok()) status = std::move(saved);
    if (stream != nullptr) {
      for (StreamEvent& event : events) stream->Push(std::move(event));
      stream->Close(std::move(status));
    } else if (ScoreWork* score = request.score()) {
      score->done(std::move(status));
    }
  };
  Release(request, reason, nullptr, std::move(tell));
}

bool Scheduler::GiveWay(const std::string& client) {
  const auto gives = [&client](const std::shared_ptr<Request>& request) {
    if (request->ended) return false;
    if (request->session == nullptr)
      return request->hold != nullptr && request->hold->client() == client;
    // Else what it has read goes to the disk first.
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

void Scheduler::FailDamaged(Request& request, int64_t position) {
  constexpr std::string_view kWhat = "the model's output was not a number";
  config_.events.not_a_number(position);
  FailDamaged(request, position, kWhat,
              absl::InternalError(
                  absl::StrCat("the model's output is not a number at position ", position)));
}

void Scheduler::FailHalfway(Request& request, int64_t position, absl::Status status) {
  FailDamaged(request, position, "the device had no memory for a step", std::move(status));
}

void Scheduler::FailUnexecuted(const Executor& step) {
  for (const Executor::Failed& failed : step.failed()) {
    Request& request = *owners_[failed.id];
    if (request.ended) continue;
    if (failed.halfway) {
      const int64_t position = sequences_[failed.id].state->position;
      FailHalfway(request, position, failed.status);
    } else {
      Fail(request, FinishReason::kError, failed.status);
    }
  }
}

void Scheduler::FailDamaged(Request& request, int64_t position, std::string_view what,
                            absl::Status status) {
  prefixes_.Forget(request.prefix);
  // One that is not open yet ends, and what was to be read again leaves a session as it was.
  const bool turn = request.session != nullptr && request.generate() != nullptr;
  if (turn) sessions_.SetDamaged(*request.session, position, what);
  Fail(request, FinishReason::kError, std::move(status));
}

bool Scheduler::FailIfDead(Request& request, SteadyTime now) {
  absl::Status death = CheckAlive(request, now);
  if (death.ok()) return false;
  const bool cancelled = absl::IsCancelled(death);
  const bool told =
      cancelled && request.generate() != nullptr && request.cancel_signal()->cancelled();
  Fail(request, cancelled ? FinishReason::kCancelled : FinishReason::kDeadline, std::move(death));
  if (told) {
    config_.events.cancel_released(
        TimeBetween(*request.cancel_signal()->time(), config_.options.clock.steady()));
  }
  return true;
}

}  // namespace ovq
