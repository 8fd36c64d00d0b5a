#include "server/engine/scheduling/request_finisher.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace ovq::engine {
namespace {

const Sequence* FindSequence(const Request& request, const RunningAnswer* answer) {
  return answer != nullptr && answer->sequence ? answer->sequence.get() : request.sequence.get();
}

Usage MakeUsage(const Request& request, const RunningAnswer* answer, SteadyTime now) {
  Usage usage;
  usage.prompt_tokens = request.prompt_tokens;
  usage.cached_tokens = request.cached_tokens + request.prefix_tokens;
  if (answer != nullptr) {
    usage.generated_tokens = answer->generated();
    usage.reasoning_tokens = answer->reasoning();
    usage.drafted_tokens = answer->drafted;
    usage.accepted_tokens = answer->accepted;
  }
  const Sequence* const sequence = FindSequence(request, answer);
  if (sequence != nullptr && sequence->state.layout != nullptr) {  // not released before
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

std::optional<double> DictionaryFill(const Request& request, const RunningAnswer* answer) {
  const Sequence* sequence = FindSequence(request, answer);
  if (sequence == nullptr || sequence->state.base == nullptr) return std::nullopt;
  const StateHandle& state = sequence->state;
  if (!state.layout->has_slot_cap()) return std::nullopt;
  const int64_t live = state.layout->LiveSlotsAt(state.position, state.slot_cap);
  return static_cast<double>(live) / state.slot_cap;
}

}  // namespace

void RequestFinisher::SetEnded(Request& request) {
  request.ended = any_ended_ = true;
  planner_.DropStanding();
}

void RequestFinisher::ReleaseStates(Request& request, StatusCallback then) {
  core_.admission.DropPromised(request);
  GenerateWork* work = request.generate();
  if (request.session != nullptr && work != nullptr)
    return core_.turns.EndTurn(request, std::move(then));
  if (request.session == nullptr && !request.keeps_answer) {
    if (request.sequence != nullptr) core_.pool.Release(request.sequence->state);
    if (work != nullptr) {
      for (const std::unique_ptr<RunningAnswer>& answer : work->answers) {
        if (answer->sequence != nullptr) core_.pool.Release(answer->sequence->state);
      }
    }
  }
  request.hold.reset();
  then(absl::OkStatus());
}

void RequestFinisher::MayKeepAnswer(Request& request) {
  if (!request.keeps_answer) return;
  if (bytes_to_keep_ < config_.options.copy_bytes_per_iteration) {
    bytes_to_keep_ += core_.pool.SnapshotBytes(request.sequence->state);
    to_keep_.push_back(request.shared_from_this());
  } else {
    request.keeps_answer = false;
    prefixes_.CountNotKept(PrefixLoss::kBusy);
  }
}

void RequestFinisher::KeepAnswers() {
  for (const std::shared_ptr<Request>& request : to_keep_) {
    StateHandle& state = request->sequence->state;
    const std::span<const int32_t> tokens = request->tokens;
    prefixes_.KeepAnswer(request->prefix, tokens.first(static_cast<size_t>(state.position)), state);
    core_.pool.Release(state);
  }
  to_keep_.clear();
  bytes_to_keep_ = 0;
}

void RequestFinisher::Release(Request& request, FinishReason reason, const RunningAnswer* last,
                              StatusCallback tell) {
  RequestReport report{.reason = reason,
                       .usage = MakeUsage(request, last, config_.options.clock.steady()),
                       .score = request.score() != nullptr,
                       .dictionary_fill = DictionaryFill(request, last)};
  if (const GenerateWork* work = request.generate()) {
    report.usage.generated_tokens = 0;
    for (const std::unique_ptr<RunningAnswer>& answer : work->answers) {
      report.usage.generated_tokens += answer->generated();
    }
  }
  SetEnded(request);
  const bool counts = request.generate() != nullptr || request.score() != nullptr;
  ReleaseStates(request, [this, report, counts, arrival = request.arrival,
                          tell = std::move(tell)](absl::Status status) mutable {
    report.total = TimeBetween(arrival, config_.options.clock.steady());
    if (counts) config_.events.request_finished(report);
    tell(std::move(status));
    core_.admission.Leave();
  });
}

void RequestFinisher::FinishAnswer(Request& request, RunningAnswer& answer, Finished finished) {
  GenerateWork& work = *request.generate();
  answer.done = true;
  planner_.DropStanding();
  finished.usage = MakeUsage(request, &answer, config_.options.clock.steady());
  if (answer.generated() > 1) {
    config_.events.time_per_token(TimeBetween(answer.first_token, answer.last_token) /
                                  (answer.generated() - 1));
  }
  const bool last = std::ranges::all_of(work.answers, [](const auto& c) { return c->done; });
  if (last) {
    MayKeepAnswer(request);
    return Release(request, finished.reason, &answer,
                   [stream = work.stream, finished = std::move(finished)](absl::Status status) {
                     if (status.ok()) stream->Push({.finished = finished});
                     stream->Close(std::move(status));
                   });
  }
  if (answer.sequence != nullptr) {
    core_.pool.Release(answer.sequence->state);
    request.hold->ReleasePart(1, request.reserve_bytes);
  }
  work.stream->Push({.finished = std::move(finished)});
}

void RequestFinisher::FinishPrompt(Request& request) {
  if (request.generate() == nullptr) {
    SetEnded(request);
    return request.on_end(request, absl::OkStatus());
  }
  for (const std::unique_ptr<RunningAnswer>& answer : request.generate()->answers) {
    FinishAnswer(request, *answer, {.index = answer->index(), .reason = FinishReason::kLength});
  }
}

void RequestFinisher::FinishScore(Request& request) {
  ScoreWork& work = *request.score();
  work.result.state_bytes = static_cast<int64_t>(request.sequence->state.committed_bytes);
  Release(request, FinishReason::kLength, nullptr,
          [&work](const absl::Status&) { work.done(std::move(work.result)); });
}

void RequestFinisher::Fail(Request& request, FinishReason reason, absl::Status status) {
  request.keeps_answer = false;
  if (request.on_end != nullptr) {
    SetEnded(request);
    return request.on_end(request, std::move(status));
  }
  GenerateWork* work = request.generate();
  std::vector<StreamEvent> events;  // usage is taken before the states go
  if (work != nullptr && reason == FinishReason::kCancelled) {
    for (const std::unique_ptr<RunningAnswer>& answer : work->answers) {
      if (answer->done) continue;
      events.emplace_back().finished =
          Finished{.index = answer->index(),
                   .reason = reason,
                   .usage = MakeUsage(request, answer.get(), config_.options.clock.steady())};
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

void RequestFinisher::FailNotANumber(Request& request, int64_t position) {
  constexpr std::string_view kWhat = "the model's output was not a number";
  config_.events.not_a_number(position);
  FailDamaged(request, position, kWhat,
              absl::InternalError(
                  absl::StrCat("the model's output is not a number at position ", position)));
}

void RequestFinisher::FailHalfway(Request& request, int64_t position, absl::Status status) {
  FailDamaged(request, position, "the device had no memory for a step", std::move(status));
}

void RequestFinisher::FailDamaged(Request& request, int64_t position, std::string_view what,
                                  absl::Status status) {
  prefixes_.Forget(request.prefix, request.tokens);
  // Without a turn: a session that is not open yet ends, and a failed replay leaves a session as it
  // was.
  const bool turn = request.session != nullptr && request.generate() != nullptr;
  if (turn) core_.turns.SetDamaged(*request.session, position, what);
  Fail(request, FinishReason::kError, std::move(status));
}

bool RequestFinisher::FailIfDead(Request& request, SteadyTime now) {
  absl::Status death = CheckAlive(request, now);
  if (death.ok()) return false;
  const bool cancelled = absl::IsCancelled(death);
  const bool told = cancelled && request.generate() != nullptr && request.cancel->cancelled();
  const bool lost = request.session != nullptr && request.session->lost;
  Fail(request,
       cancelled ? FinishReason::kCancelled
       : lost    ? FinishReason::kError
                 : FinishReason::kDeadline,
       std::move(death));
  if (told) {
    config_.events.cancel_released(
        TimeBetween(*request.cancel->time(), config_.options.clock.steady()));
  }
  return true;
}

}  // namespace ovq::engine
