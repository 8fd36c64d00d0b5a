#include "server/engine/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/engine/error_facts.h"

namespace ovq {
namespace {

template <class... Args>
absl::Status Exhausted(const Args&... message) {
  return absl::ResourceExhaustedError(absl::StrCat(message...));
}

}  // namespace

absl::Status Admission::Refuse(RejectReason reason, absl::Status status) const {
  config_.events.rejected(reason);
  return WithFacts(std::move(status), {.reason = reason});
}

absl::Status Admission::RefuseDraining() const {
  return Refuse(RejectReason::kDraining, absl::UnavailableError("the server is draining"));
}

absl::Status Admission::Enqueue(std::shared_ptr<Job> job) {
  const EngineOptions& options = config_.options;
  const size_t needed = job->reserve_bytes * static_cast<size_t>(job->n_states);
  if (needed > options.state_memory_bytes) {
    return Refuse(RejectReason::kStateMemory,
                  WithFacts(Exhausted("state memory: ", needed, " bytes needed, the server has ",
                                      options.state_memory_bytes, " in all"),
                            {.bytes_needed = needed, .bytes_free = options.state_memory_bytes}));
  }
  if (job->n_states > options.max_sessions) {
    return Refuse(RejectReason::kSessionLimit,
                  Exhausted("sessions: ", job->n_states, " needed, the server has ",
                            options.max_sessions, " in all"));
  }
  std::lock_guard lock(mutex_);
  if (closed_) return RefuseDraining();
  if (static_cast<int>(queue_.size()) >= options.max_queue) {
    return Refuse(RejectReason::kQueueFull,
                  Exhausted("queue: ", options.max_queue, " requests wait already"));
  }
  // What waits counts too: a tenant at its limits fills no queue.
  if (absl::Status status = Charge(*job, job->n_states, needed); !status.ok()) return status;
  ++accepted_;
  queue_.push_back(std::move(job));
  return absl::OkStatus();
}

absl::Status Admission::Enter() {
  std::lock_guard lock(mutex_);
  if (closed_) return RefuseDraining();
  ++accepted_;
  return absl::OkStatus();
}

absl::Status Admission::Charge(Job& job, int64_t states, size_t bytes) {
  auto admitted = config_.options.quotas->Admit(
      job.tenant, {.prompt_tokens = job.prompt_tokens, .sessions = states, .bytes = bytes});
  if (!admitted.ok()) {
    config_.events.rejected(*FactsOf(admitted.status()).reason);
    return admitted.status();
  }
  job.hold = *std::move(admitted);
  return absl::OkStatus();
}

void Admission::Reenter() {
  std::lock_guard lock(mutex_);
  ++accepted_;
}

void Admission::Leave() {
  std::lock_guard lock(mutex_);
  if (--accepted_ == 0) all_ended_.notify_all();
}

bool Admission::Close(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  closed_ = true;
  return all_ended_.wait_until(lock, After(std::chrono::steady_clock::now(), timeout),
                               [this] { return accepted_ == 0; });
}

std::shared_ptr<Job> Admission::Next() {
  std::lock_guard lock(mutex_);
  if (queue_.empty()) return nullptr;
  Job& first = *queue_.front();
  if (states() + first.n_states > config_.options.max_sessions) return nullptr;
  // Until a promised state is taken, the first one holds its part of the reservation.
  const size_t bytes = first.reserve_bytes * static_cast<size_t>(first.n_states);
  if (!HasRoom(bytes)) return nullptr;
  absl::StatusOr<StateHandle> state = pool_.Acquire(*first.memory->layout, first.slot_cap, bytes);
  if (!state.ok()) return nullptr;
  first.sequence = std::make_shared<Sequence>(Sequence{.state = *state, .pending = {}});
  first.promised_states = first.n_states - 1;
  promised_states_ += first.promised_states;
  std::shared_ptr<Job> job = std::move(queue_.front());
  queue_.pop_front();
  return job;
}

absl::Status Admission::CheckSessionLimit() const {
  const int most = config_.options.max_sessions;
  if (states() < most) return absl::OkStatus();
  return Refuse(RejectReason::kSessionLimit,
                Exhausted("sessions: all ", most, " of the server are in use"));
}

bool Admission::HasRoom(size_t bytes) const {
  return bytes <= pool_.free_bytes() || (make_room_ && make_room_(bytes));
}

absl::StatusOr<StateHandle> Admission::AcquireSession(const StateLayout& layout, int32_t slot_cap) {
  if (absl::Status status = CheckSessionLimit(); !status.ok()) return status;
  const size_t bytes = layout.bytes_cap(slot_cap);
  (void)HasRoom(bytes);  // if not, Acquire says what is missing
  absl::StatusOr<StateHandle> state = pool_.Acquire(layout, slot_cap, bytes);
  if (!state.ok()) return Refuse(RejectReason::kStateMemory, state.status());
  return state;
}

absl::StatusOr<StateHandle> Admission::CloneSession(const StateHandle& state) {
  if (absl::Status status = CheckSessionLimit(); !status.ok()) return status;
  const size_t bytes = state.layout->bytes_cap(state.slot_cap);
  (void)HasRoom(bytes);
  absl::StatusOr<StateHandle> clone = pool_.Clone(state, bytes);
  if (!clone.ok()) return Refuse(RejectReason::kStateMemory, clone.status());
  return clone;
}

StateHandle Admission::TakePromised(Job& job) {
  StateHandle& first = job.sequence->state;
  pool_.ShrinkReservation(first, first.reserved_bytes - job.reserve_bytes);
  absl::StatusOr<StateHandle> state = pool_.Clone(first, job.reserve_bytes);
  Check(state.ok(), "the bytes of a promised state were given back just before");
  --job.promised_states;
  --promised_states_;
  return *state;
}

void Admission::DropPromised(Job& job) {
  promised_states_ -= std::exchange(job.promised_states, 0);
}

std::vector<std::shared_ptr<Job>> Admission::Remove(const std::function<bool(const Job&)>& which) {
  std::vector<std::shared_ptr<Job>> removed;
  std::lock_guard lock(mutex_);
  std::erase_if(queue_, [&](const std::shared_ptr<Job>& job) {
    if (!which(*job)) return false;
    removed.push_back(job);
    return true;
  });
  return removed;
}

SteadyTime Admission::next_deadline() const {
  std::lock_guard lock(mutex_);
  SteadyTime next = kNever;
  for (const std::shared_ptr<Job>& job : queue_) next = std::min(next, job->deadline);
  return next;
}

void Admission::AddTo(EngineStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.requests_waiting += static_cast<int>(queue_.size());
  for (const std::shared_ptr<Job>& job : queue_) stats.waiting_prompt_tokens += job->prompt_tokens;
}

}  // namespace ovq
