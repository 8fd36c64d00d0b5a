// Admission control: tenant quotas, a fair queue and exact reservation of state memory.
// Clients (CallRequest::client) share the queue, the sessions and the memory: where one of these is
// full, something of a client with more than its part is evicted for one with less.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/engine/common/engine_config.h"
#include "server/engine/common/request.h"
#include "server/engine/common/state_pool.h"

namespace ovq::engine {

// Evicts where the server is full; until it is told how, it evicts nothing. Engine thread only.
struct Evictor {
  // Swaps idle states out, least recently used first, until `bytes` are free. Returns whether they
  // are. False where states cannot be swapped out.
  std::function<bool(size_t bytes)> evict_idle_states = [](size_t) { return false; };
  // Takes something from a client: its idle session that was used least recently (table: so that
  // there is one session less; otherwise its state may be swapped out), or if it has none and
  // `running` is set the call of it that began last. False if there is nothing to take.
  std::function<bool(const std::string& client, bool table, bool running)> evict_from =
      [](const std::string&, bool, bool) { return false; };
};

class Admission {
 public:
  Admission(const EngineConfig& config, StatePool& pool) : config_(config), pool_(pool) {}

  // --- any thread. A refusal charges nothing and is reported to EngineEvents::rejected ---

  // Accepts a request that needs states of its own and queues it. If the queue is full, the client
  // with the most requests in it loses its last one (DequeuePushedOut), if that client has more
  // than the caller would have. ResourceExhausted, Unavailable.
  absl::Status Enqueue(std::shared_ptr<Request> request);
  // Accepts work that does not wait in the queue. Unavailable.
  absl::Status Enter();
  // Charges the request to its tenant, and holds `states` and `bytes` of the tenant's share for it.
  absl::Status Charge(Request& request, int64_t states, size_t bytes);
  void Reenter();  // counts further work of accepted work, also while draining
  void Leave();    // must be called once for all that was accepted, when it has ended

  // Accepts nothing from now on. Returns true when all accepted work has ended, false at the
  // timeout.
  bool Close(absl::Duration timeout);

  // --- engine thread ---

  // Takes the first request of the client that would then hold least; its first state is acquired,
  // the others are promised. Null if the queue is empty or the request does not fit: nobody
  // overtakes it. A request that fits, but for which the system gives no memory, has no state
  // (Request::refused).
  std::shared_ptr<Request> Next();
  std::vector<std::shared_ptr<Request>> DequeuePushedOut();
  absl::Status PushedOut() const;  // the status that these requests end with
  // Acquires the state of a session: at once or not at all. stored: it is swapped in, and takes no
  // place that it had not before, also where a server has found more sessions than it may have.
  absl::StatusOr<StateHandle> AcquireSession(const model::StateLayout& layout, int32_t slot_cap,
                                             const std::string& client, bool stored = false);
  // Acquires the states of `count` sessions: all at once or none.
  absl::StatusOr<std::vector<StateHandle>> AcquireSessions(const model::StateLayout& layout,
                                                           int32_t slot_cap, int count,
                                                           const std::string& client,
                                                           bool stored = false);
  void SetEvictor(Evictor evictor) { evictor_ = std::move(evictor); }
  // Counts sessions whose state is not in memory: they take places like the others.
  void CountStored(int change) { stored_sessions_ += change; }
  // Acquires one of the request's promised states, a copy of its first. ResourceExhausted if the
  // system gives no memory for it.
  absl::StatusOr<StateHandle> AcquirePromised(Request& request);
  void DropPromised(Request& request);

  // Takes matching requests out of the queue.
  std::vector<std::shared_ptr<Request>> Remove(const std::function<bool(const Request&)>& which);
  SteadyTime next_deadline() const;  // of queued requests; kNever without one
  void AddTo(EngineStats& stats) const;

 private:
  // The queued requests of one client, and what they will need.
  struct Waiting {
    std::deque<std::shared_ptr<Request>> requests;
    int64_t states = 0;
    size_t bytes = 0;

    void Count(const Request& request, int sign);
  };

  absl::Status Refuse(RejectReason reason, absl::Status status) const;
  absl::Status CheckRoom(const std::string& client, int n_states, size_t bytes);
  // Evicts idle states, and what other clients have beyond their part, until the states fit.
  // Returns whether they fit.
  bool EvictToFit(const std::string& client, int n_states, size_t bytes);
  // Evicts from the client with the most beyond its part, if `client` stays within its own part.
  bool EvictLargest(const std::string& client, int n_states, size_t bytes, bool table);
  std::shared_ptr<Request> First() const;
  // Takes the request out of the queue. False if it has been pushed out meanwhile.
  bool DequeueFirst(const Request& request);
  int states() const { return pool_.sessions() + promised_states_ + stored_sessions_; }

  const EngineConfig& config_;
  StatePool& pool_;

  mutable std::mutex mutex_;              // guards the members down to all_ended_
  std::map<std::string, Waiting> queue_;  // by client, none empty
  int n_waiting_ = 0;
  std::vector<std::shared_ptr<Request>> pushed_out_;
  int accepted_ = 0;  // accepted and not ended
  bool closed_ = false;
  std::condition_variable all_ended_;

  // Engine thread only.
  int promised_states_ = 0;  // the sum of Request::promised_states
  int stored_sessions_ = 0;
  Evictor evictor_;
};

}  // namespace ovq::engine
