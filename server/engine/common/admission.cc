#include "server/engine/common/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"

namespace ovq::engine {
namespace {

template <class... Args>
absl::Status Exhausted(const Args&... message) {
  return absl::ResourceExhaustedError(absl::StrCat(message...));
}

absl::Status Draining() { return absl::UnavailableError("the server is draining"); }

}  // namespace

absl::Status Admission::Refuse(RejectReason reason, absl::Status status) const {
  config_.events.rejected(reason);
  return WithFacts(std::move(status), {.reason = reason});
}

absl::Status Admission::Enqueue(std::shared_ptr<Request> request) {
  const EngineOptions& options = config_.options;
  const size_t needed = request->total_bytes();
  if (needed > options.state_memory_bytes) {
    return Refuse(RejectReason::kStateMemory,
                  WithFacts(Exhausted("state memory: ", needed, " bytes needed, the server has ",
                                      options.state_memory_bytes, " in all"),
                            {.bytes_needed = needed, .bytes_free = options.state_memory_bytes}));
  }
  if (request->n_states > options.max_sessions) {
    return Refuse(RejectReason::kSessionLimit,
                  Exhausted("sessions: ", request->n_states, " needed, the server has ",
                            options.max_sessions, " in all"));
  }
  std::lock_guard lock(mutex_);
  if (closed_) return Refuse(RejectReason::kDraining, Draining());
  const auto longest = std::ranges::max_element(
      queue_, {}, [](const auto& entry) { return entry.second.requests.size(); });
  const bool full = n_waiting_ >= options.max_queue;
  const auto mine = queue_.find(request->client);
  const size_t n_mine = mine == queue_.end() ? 0 : mine->second.requests.size();
  if (full && (longest == queue_.end() || longest->second.requests.size() <= n_mine + 1)) {
    return Refuse(RejectReason::kQueueFull,
                  Exhausted("queue: ", options.max_queue, " requests wait already"));
  }
  // Queued requests are charged too, so that a tenant at its limits fills no queue.
  RETURN_IF_ERROR(Charge(*request, request->n_states, needed));
  if (full) {
    pushed_out_.push_back(longest->second.requests.back());
    longest->second.Count(*longest->second.requests.back(), -1);
    longest->second.requests.pop_back();
    --n_waiting_;
  }
  ++accepted_;
  ++n_waiting_;
  Waiting& waiting = queue_[request->client];
  waiting.Count(*request, 1);
  waiting.requests.push_back(std::move(request));
  return absl::OkStatus();
}

void Admission::Waiting::Count(const Request& request, int sign) {
  states += sign * request.n_states;
  bytes = sign > 0 ? bytes + request.total_bytes() : bytes - request.total_bytes();
}

std::vector<std::shared_ptr<Request>> Admission::DequeuePushedOut() {
  std::lock_guard lock(mutex_);
  return std::exchange(pushed_out_, {});
}

absl::Status Admission::PushedOut() const {
  return Refuse(RejectReason::kQueueFull,
                Exhausted("queue: ", config_.options.max_queue,
                          " requests wait already; others had fewer in it than this client"));
}

absl::Status Admission::Enter() {
  std::lock_guard lock(mutex_);
  if (closed_) return Refuse(RejectReason::kDraining, Draining());
  ++accepted_;
  return absl::OkStatus();
}

absl::Status Admission::Charge(Request& request, int64_t states, size_t bytes) {
  auto admitted =
      config_.options.quotas->Admit(request.tenant, {.client = request.client,
                                                     .prompt_tokens = request.prompt_tokens,
                                                     .sessions = states,
                                                     .bytes = bytes});
  if (!admitted.ok()) {
    config_.events.rejected(*GetErrorFacts(admitted.status()).reason);
    return admitted.status();
  }
  request.hold = *std::move(admitted);
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

std::shared_ptr<Request> Admission::First() const {
  const std::shared_ptr<Request>* first = nullptr;
  double least = 0;
  std::lock_guard lock(mutex_);
  for (const auto& [client, waiting] : queue_) {
    const std::shared_ptr<Request>& request = waiting.requests.front();
    double has = 0;
    if (queue_.size() > 1) {
      const ClientUse use = config_.options.quotas->ClientUsage(client);
      has = static_cast<double>(use.bytes - waiting.bytes + request->total_bytes()) / use.weight;
    }
    const bool before =
        first == nullptr || has < least || (has == least && request->arrival < (*first)->arrival);
    if (!before) continue;
    first = &request;
    least = has;
  }
  return first == nullptr ? nullptr : *first;
}

bool Admission::DequeueFirst(const Request& request) {
  std::lock_guard lock(mutex_);
  const auto it = queue_.find(request.client);
  if (it == queue_.end() || it->second.requests.front().get() != &request) return false;
  Waiting& waiting = it->second;
  waiting.Count(request, -1);
  waiting.requests.pop_front();
  --n_waiting_;
  if (waiting.requests.empty()) queue_.erase(it);
  return true;
}

std::shared_ptr<Request> Admission::Next() {
  const std::shared_ptr<Request> request = First();
  if (request == nullptr) return nullptr;
  // The first state holds the reservations of promised states until they are taken.
  const size_t bytes = request->total_bytes();
  if (!EvictToFit(request->client, request->n_states, bytes)) return nullptr;
  absl::StatusOr<StateHandle> state =
      pool_.Acquire(*request->variant->layout, request->slot_cap, bytes);
  if (!DequeueFirst(*request)) {
    if (state.ok()) pool_.Release(*state);  // the request was pushed out meanwhile
    return Next();
  }
  if (!state.ok()) {
    request->refused = state.status();
    return request;
  }
  request->sequence = std::make_shared<Sequence>(Sequence{.state = *state, .pending = {}});
  request->promised_states = request->n_states - 1;
  promised_states_ += request->promised_states;
  return request;
}

// Checks that the states fit, after evicting what may be evicted.
absl::Status Admission::CheckRoom(const std::string& client, int n_states, size_t bytes) {
  (void)EvictToFit(client, n_states, bytes);  // the checks below name what is missing
  const int most = config_.options.max_sessions, left = std::max(most - states(), 0);
  if (n_states > left) {
    return Refuse(RejectReason::kSessionLimit,
                  left == 0 ? Exhausted("sessions: all ", most, " of the server are in use")
                            : Exhausted("sessions: ", n_states, " needed, ", left,
                                        " of the server's ", most, " free"));
  }
  absl::Status status = pool_.CheckFree(bytes);
  return status.ok() ? status : Refuse(RejectReason::kStateMemory, std::move(status));
}

bool Admission::EvictToFit(const std::string& client, int n_states, size_t bytes) {
  while (n_states > 0 && states() + n_states > config_.options.max_sessions) {
    if (!EvictLargest(client, n_states, bytes, /*table=*/true)) return false;
  }
  if (bytes <= pool_.free_bytes() || evictor_.evict_idle_states(bytes)) return true;
  while (bytes > pool_.free_bytes()) {
    if (!EvictLargest(client, n_states, bytes, /*table=*/false)) return false;
  }
  return true;
}

// A client's part is its weight among the clients that hold something, itself included.
bool Admission::EvictLargest(const std::string& client, int n_states, size_t bytes, bool table) {
  const TenantQuotas& quotas = *config_.options.quotas;
  std::unique_lock lock(mutex_);
  const auto admitted = [&](const std::string& name, const ClientUse& use) {
    const auto found = queue_.find(name);
    const Waiting waiting = found == queue_.end() ? Waiting() : found->second;
    return table ? static_cast<double>(use.sessions - waiting.states)
                 : static_cast<double>(use.bytes - waiting.bytes);
  };
  const ClientUse mine = quotas.ClientUsage(client);
  const double has = std::max(admitted(client, mine), 0.0);
  double weights = mine.weight, most = 0;
  std::string largest;
  for (const ClientUse& use : quotas.Clients()) {
    if (use.name == client) continue;
    const double part = admitted(use.name, use) / use.weight;
    if (part <= 0) continue;
    weights += use.weight;
    if (part <= most) continue;
    most = part;
    largest = use.name;
  }
  lock.unlock();
  const double all = table ? config_.options.max_sessions
                           : static_cast<double>(config_.options.state_memory_bytes);
  const double wanted = table ? n_states : static_cast<double>(bytes);
  const bool may = has + wanted <= all * mine.weight / weights && most > all / weights;
  return may && evictor_.evict_from(largest, table, has == 0);
}

absl::StatusOr<StateHandle> Admission::AcquireSession(const model::StateLayout& layout,
                                                      int32_t slot_cap, const std::string& client,
                                                      bool stored) {
  ASSIGN_OR_RETURN(const std::vector<StateHandle> states,
                   AcquireSessions(layout, slot_cap, 1, client, stored));
  return states.front();
}

absl::StatusOr<std::vector<StateHandle>> Admission::AcquireSessions(
    const model::StateLayout& layout, int32_t slot_cap, int count, const std::string& client,
    bool stored) {
  const size_t bytes = layout.bytes_cap(slot_cap);
  RETURN_IF_ERROR(CheckRoom(client, stored ? 0 : count, bytes * static_cast<size_t>(count)));
  std::vector<StateHandle> states;
  while (std::ssize(states) < count) {
    const absl::StatusOr<StateHandle> state = pool_.Acquire(layout, slot_cap, bytes);
    if (!state.ok()) {
      for (StateHandle& acquired : states) pool_.Release(acquired);
      return Refuse(RejectReason::kStateMemory, state.status());
    }
    states.push_back(*state);
  }
  return states;
}

absl::StatusOr<StateHandle> Admission::AcquirePromised(Request& request) {
  StateHandle& first = request.sequence->state;
  pool_.ShrinkReservation(first, first.reserved_bytes - request.reserve_bytes);
  ASSIGN_OR_RETURN(StateHandle state, pool_.Clone(first, request.reserve_bytes));
  --request.promised_states;
  --promised_states_;
  return state;
}

void Admission::DropPromised(Request& request) {
  promised_states_ -= std::exchange(request.promised_states, 0);
}

std::vector<std::shared_ptr<Request>> Admission::Remove(
    const std::function<bool(const Request&)>& which) {
  std::vector<std::shared_ptr<Request>> removed;
  std::lock_guard lock(mutex_);
  for (auto it = queue_.begin(); it != queue_.end();) {
    Waiting& waiting = it->second;
    std::erase_if(waiting.requests, [&](const std::shared_ptr<Request>& request) {
      if (!which(*request)) return false;
      removed.push_back(request);
      waiting.Count(*request, -1);
      --n_waiting_;
      return true;
    });
    it = waiting.requests.empty() ? queue_.erase(it) : std::next(it);
  }
  return removed;
}

SteadyTime Admission::next_deadline() const {
  std::lock_guard lock(mutex_);
  SteadyTime next = kNever;
  for (const auto& [client, waiting] : queue_) {
    for (const std::shared_ptr<Request>& request : waiting.requests)
      next = std::min(next, request->deadline);
  }
  return next;
}

void Admission::AddTo(EngineStats& stats) const {
  std::lock_guard lock(mutex_);
  stats.requests_waiting += n_waiting_;
  for (const auto& [client, waiting] : queue_) {
    for (const std::shared_ptr<Request>& request : waiting.requests) {
      stats.waiting_prompt_tokens += request->prompt_tokens;
    }
  }
}

}  // namespace ovq::engine
