#include "clients/load/runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ovq::load {
namespace {

constexpr std::chrono::milliseconds kProgressInterval{200};
constexpr absl::Duration kTryAgain = absl::Milliseconds(200);

}  // namespace

Runner::Runner(const RunPlan& plan, Workload& workload, const PromptMaker& prompts,
               const Calls& calls, const std::atomic<int>& interrupts,
               std::function<void(const Progress&)> on_progress)
    : plan_(plan),
      workload_(workload),
      prompts_(prompts),
      calls_(calls),
      interrupts_(interrupts),
      on_progress_(std::move(on_progress)),
      schedule_(plan.arrivals) {}

RunResult Runner::Run() {
  begin_ = next_progress_ = Clock::now();
  end_ = After(begin_, plan_.duration);
  PrepareUpcoming();
  Clock::time_point wake = begin_;
  while (true) {
    HandleEvents(wake);
    const Clock::time_point now = Clock::now();
    CheckLimits(now);
    StartDue(now);
    ReportProgress(now);
    if (upcoming_ == nullptr && waiting_.empty() && in_flight_ == 0 && deleting_ == 0) {
      return std::move(result_);
    }
    wake = NextWake(now);
  }
}

void Runner::Post(std::function<void()> event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  wake_.notify_one();
}

void Runner::HandleEvents(Clock::time_point until) {
  std::vector<std::function<void()>> events;
  {
    std::unique_lock lock(mutex_);
    wake_.wait_until(lock, until, [this] { return !events_.empty(); });
    events.swap(events_);
  }
  for (const std::function<void()>& event : events) event();
}

void Runner::PrepareUpcoming() {
  upcoming_.reset();
  std::optional<Conversation> plan = workload_.Next();
  if (!plan) return;
  upcoming_ = std::make_shared<Active>();
  upcoming_->plan = *std::move(plan);
  if (plan_.kind == RunPlan::Kind::kRate) upcoming_->due = At(schedule_.Next());
  if (plan_.kind == RunPlan::Kind::kTrace) upcoming_->due = At(*upcoming_->plan.turns[0].due_s);
  // Prepared before it is due, because a long prompt takes a while.
  if (!stopping_) PreparePrompt(*upcoming_);
}

void Runner::PreparePrompt(Active& active) const {
  active.prompt = prompts_.Make(active.plan.index, static_cast<int64_t>(active.next_turn),
                                active.turn().input_tokens);
}

void Runner::StartDue(Clock::time_point now) {
  while (closed_loop() && users_ < plan_.users && StartOfUser(users_) <= now) ++users_;
  while (in_flight_ < plan_.max_in_flight) {
    const bool turn = !waiting_.empty() && waiting_.top()->due <= now;
    const bool upcoming =
        upcoming_ != nullptr && (closed_loop() ? conversations_ < users_ : upcoming_->due <= now);
    if (turn && (!upcoming || closed_loop() || waiting_.top()->due <= upcoming_->due)) {
      ActivePtr active = waiting_.top();
      waiting_.pop();
      Send(std::move(active));
    } else if (upcoming) {
      ActivePtr active = std::exchange(upcoming_, nullptr);
      ++conversations_;
      if (closed_loop()) active->due = now;
      Send(std::move(active));
      PrepareUpcoming();
    } else {
      return;
    }
  }
}

void Runner::Send(ActivePtr active) {
  if (active->ended) return DeleteSession(active);
  active->send_delay_s = SecondsBetween(active->due, Clock::now());
  const bool is_new = active->plan.session && active->session_id.empty();
  if (!is_new && !active->away_since) return SendTurn(std::move(active));
  ++in_flight_;
  if (!is_new) {
    return calls_.get_position(active->session_id,
                               [this, active](const absl::StatusOr<int64_t>& position) {
                                 Post([=, this] { OnPosition(active, position); });
                               });
  }
  calls_.create_session([this, active, sent = Clock::now()](const absl::StatusOr<std::string>& id) {
    Post([=, this, ended = Clock::now()] { OnCreated(active, id, sent, ended); });
  });
}

void Runner::OnCreated(const ActivePtr& active, const absl::StatusOr<std::string>& id,
                       Clock::time_point sent, Clock::time_point ended) {
  if (!id.ok() && TryLater(active, id.status(), in_flight_)) return;
  // A failed CreateSession fails the conversation's first request.
  if (!id.ok()) return OnTurnDone(active, {.status = id.status(), .sent = sent, .ended = ended});
  --in_flight_;
  result_.create_ms.push_back(SecondsBetween(sent, ended) * 1e3);
  active->session_id = *id;
  active->away_since.reset();
  if (stopping_) return EndConversation(active);
  SendTurn(active);
}

void Runner::SendTurn(ActivePtr active) {
  ++in_flight_;
  GenerateSpec spec{
      .prompt = std::move(active->prompt),
      .output_tokens = active->turn().output_tokens,
      .session_id = active->session_id,
      .seed = prompts_.SamplingSeed(active->plan.index, static_cast<int64_t>(active->next_turn))};
  calls_.generate(std::move(spec), [this, active](Outcome outcome) {
    auto shared = std::make_shared<Outcome>(std::move(outcome));  // std::function must be copyable
    Post([this, active, shared] { OnTurnDone(active, std::move(*shared)); });
  });
}

bool Runner::TryLater(const ActivePtr& active, const absl::Status& status, int64_t& running) {
  const bool away = absl::IsUnavailable(status) || absl::IsCancelled(status);
  if (!away || stopping_ || plan_.outlast == absl::ZeroDuration()) return false;
  const Clock::time_point now = Clock::now();
  if (!active->away_since) {
    active->away_since = now;
    ++result_.outlasted;
  }
  if (now >= After(*active->away_since, plan_.outlast)) return false;
  --running;
  active->due = After(now, kTryAgain);
  waiting_.push(active);
  return true;
}

// The position must cover everything that the server had acknowledged; of the running turn any part
// may be there.
void Runner::OnPosition(const ActivePtr& active, const absl::StatusOr<int64_t>& position) {
  if (!position.ok() && TryLater(active, position.status(), in_flight_)) return;
  const Turn& turn = active->turn();
  const int64_t most = active->position + turn.input_tokens + turn.output_tokens;
  absl::Status status = position.status();
  if (status.ok() && (*position < active->position || *position > most)) {
    status =
        absl::DataLossError(absl::StrCat("the session came back with ", *position,
                                         " tokens, expected ", active->position, " to ", most));
  }
  if (!status.ok()) {
    const Clock::time_point now = Clock::now();
    return OnTurnDone(active, {.status = status, .sent = now, .ended = now});
  }
  --in_flight_;
  active->position = *position;
  active->away_since.reset();
  if (stopping_) return EndConversation(active);
  PreparePrompt(*active);
  SendTurn(active);
}

absl::Status Runner::Follow(Active& active, const ServerUsage& usage) const {
  if (!active.plan.session || plan_.outlast == absl::ZeroDuration()) return absl::OkStatus();
  active.position += usage.prompt_tokens + usage.generated_tokens;
  if (usage.position == active.position) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the session has ", usage.position, " tokens, expected ", active.position));
}

void Runner::OnTurnDone(const ActivePtr& active, Outcome outcome) {
  if (active->plan.session && !active->session_id.empty() && !active->away_since &&
      TryLater(active, outcome.status, in_flight_)) {
    return;
  }
  --in_flight_;
  if (outcome.status.ok()) outcome.status = Follow(*active, outcome.usage);
  const bool ok = outcome.status.ok();
  const Clock::time_point ended = outcome.ended;
  // The user of a conversation also waits while its session is created.
  const bool from_due = !closed_loop() || (active->plan.session && active->next_turn == 0);
  Record& record = result_.records.emplace_back();
  record.conversation = active->plan.index;
  record.turn = static_cast<int64_t>(active->next_turn);
  record.input_tokens = active->turn().input_tokens;
  record.start = from_due ? active->due : outcome.sent;
  record.send_delay_s = active->send_delay_s;
  record.cut_off = cancelled_ && absl::IsCancelled(outcome.status);
  record.outcome = std::move(outcome);
  completed_ += record.completed();
  failed_ += record.failed();
  ++active->next_turn;
  if (ok && !stopping_ && active->next_turn < active->plan.turns.size()) {
    const std::optional<double> due_s = active->turn().due_s;
    active->due = due_s ? At(*due_s) : After(ended, plan_.think_time);
    PreparePrompt(*active);
    waiting_.push(active);
    return;
  }
  if (!ok && !cancelled_) result_.abandoned += active->plan.turns.size() - active->next_turn;
  EndConversation(active);
}

void Runner::EndConversation(const ActivePtr& active) {
  --conversations_;
  active->ended = true;
  if (!active->session_id.empty()) DeleteSession(active);
}

void Runner::DeleteSession(const ActivePtr& active) {
  ++deleting_;
  calls_.delete_session(active->session_id, [this, active](const absl::Status& status) {
    Post([=, this] { OnDeleted(active, status); });
  });
}

void Runner::OnDeleted(const ActivePtr& active, const absl::Status& status) {
  if (!status.ok() && TryLater(active, status, deleting_)) return;
  --deleting_;
  // A server that went away may have deleted it before.
  const bool was_deleted = absl::IsNotFound(status) && active->away_since;
  if (!status.ok() && !was_deleted) result_.delete_errors.Add(status.ToString());
}

void Runner::CheckLimits(Clock::time_point now) {
  if (const int interrupts = interrupts_; interrupts > seen_interrupts_) {
    seen_interrupts_ = interrupts;
    result_.interrupted = true;
    StopSending(now, interrupts > 1 ? absl::ZeroDuration()
                                    : std::min(plan_.grace, plan_.interrupted_grace));
  }
  if (!stopping_ && now >= end_) StopSending(end_, plan_.grace);
  if (stopping_ && !cancelled_ && in_flight_ > 0 && now >= cancel_at_) {
    cancelled_ = true;
    calls_.cancel_all();
  }
}

void Runner::StopSending(Clock::time_point now, absl::Duration grace) {
  cancel_at_ = After(now, grace);
  if (std::exchange(stopping_, true)) return;
  while (!waiting_.empty()) {
    const ActivePtr active = waiting_.top();
    waiting_.pop();
    if (active->ended) {
      DeleteSession(active);
      continue;
    }
    result_.unsent += active->due <= now;
    EndConversation(active);
  }
  // In a closed loop nothing is due before it is sent.
  while (upcoming_ != nullptr && !closed_loop() && upcoming_->due <= now) {
    ++result_.unsent;
    PrepareUpcoming();
  }
  upcoming_.reset();
}

Clock::time_point Runner::NextWake(Clock::time_point now) const {
  Clock::time_point wake = std::min(now + kProgressInterval, stopping_ ? cancel_at_ : end_);
  if (stopping_ && cancelled_) wake = now + kProgressInterval;
  if (!waiting_.empty()) wake = std::min(wake, waiting_.top()->due);
  if (upcoming_ != nullptr && (!closed_loop() || users_ < plan_.users)) {
    wake = std::min(wake, closed_loop() ? StartOfUser(users_) : upcoming_->due);
  }
  // Requests that are already due wait for a call to end, which wakes the loop.
  return wake > now ? wake : now + kProgressInterval;
}

void Runner::ReportProgress(Clock::time_point now) {
  if (now < next_progress_) return;
  next_progress_ = now + kProgressInterval;
  on_progress_(
      {SecondsBetween(begin_, now), completed_, failed_, in_flight_, calls_.tokens_received()});
}

}  // namespace ovq::load
