// Which work is let in, and when: tenants' limits, the queue, and memory by exact reservation.
// Clients (CallRequest::client) share queue, sessions and memory: where these are full, who has
// more than its part makes way for who has less.
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
#include "server/engine/engine_config.h"
#include "server/engine/evictor.h"
#include "server/engine/request.h"
#include "server/engine/state_pool.h"

namespace ovq {

class Admission {
 public:
  Admission(const EngineConfig& config, StatePool& pool) : config_(config), pool_(pool) {}

  // --- any thread. A refusal charges nothing and is told to EngineEvents::rejected ---

  // Accepts a request that needs states of its own: it waits in the queue. If that is full, the
  // last request of who has most in it leaves it (TakePushedOut), if that is more than the caller
  // would have. ResourceExhausted, Unavailable.
  absl::Status Enqueue(std::shared_ptr<Request> request);
  // Accepts work that does not wait in the queue. Unavailable.
  absl::Status Enter();
  // Charges the request to its tenant and holds that many states and bytes of the tenant's share
  // for it.
  absl::Status Charge(Request& request, int64_t states, size_t bytes);
  void Reenter();  // of what work that was accepted needs, also while draining
  void Leave();    // of everything that was accepted, once, when it has ended

  // Accepts nothing from now on. True when all that was accepted has ended, false at the timeout.
  bool Close(absl::Duration timeout);

  // --- engine thread ---

  // Of the first requests of all clients that of who would then have least, its first state
  // acquired and the others promised; null while the queue is empty or that does not fit. Nobody
  // overtakes. One that fits, but for which the system gives no memory, comes without a state
  // (Request::refused).
  std::shared_ptr<Request> Next();
  std::vector<std::shared_ptr<Request>> TakePushedOut();
  absl::Status PushedOut() const;  // with which these end
  // For a new session, or one whose state comes back: at once or not at all.
  absl::StatusOr<StateHandle> AcquireSession(const StateLayout& layout, int32_t slot_cap,
                                             const std::string& client);
  // For copies of a session, likewise all or none.
  absl::StatusOr<std::vector<StateHandle>> AcquireCopies(const StateHandle& state, int count,
                                                         const std::string& client);
  // Nothing is evicted without one. The evictor outlives the last call that admits.
  void SetEvictor(Evictor* evictor) { evictor_ = evictor; }
  // Sessions without a state in memory count as the others do.
  void CountStored(int change) { stored_sessions_ += change; }
  // One of the request's promised states, with the bytes of the first. ResourceExhausted where the
  // system gives no memory for it.
  absl::StatusOr<StateHandle> TakePromised(Request& request);
  void DropPromised(Request& request);

  // Takes requests out of the queue.
  std::vector<std::shared_ptr<Request>> Remove(const std::function<bool(const Request&)>& which);
  SteadyTime next_deadline() const;  // of the queue; kNever without one
  void AddTo(EngineStats& stats) const;

 private:
  // A client's requests in the queue.
  struct Waiting {
    std::deque<std::shared_ptr<Request>> requests;
    int64_t states = 0;
    size_t bytes = 0;

    void Count(const Request& request, int sign);
  };

  absl::Status Refuse(RejectReason reason, absl::Status status) const;
  absl::Status RefuseDraining() const;
  absl::Status CheckRoom(const std::string& client, int n_states, size_t bytes);
  // Evicts idle states, and what other clients have beyond their part, until the states fit.
  // Returns whether they fit.
  bool EvictToFit(const std::string& client, int n_states, size_t bytes);
  // Evicts from the client with the most beyond its part, if `client` stays within its own part.
  bool EvictLargest(const std::string& client, int n_states, size_t bytes, bool table);
  std::shared_ptr<Request> First() const;
  bool TakeFirst(
      const Request& request);  // out of the queue; false if it has been pushed out meanwhile
  int states() const { return pool_.sessions() + promised_states_ + stored_sessions_; }

  const EngineConfig& config_;
  StatePool& pool_;

  mutable std::mutex mutex_;              // guards down to all_ended_
  std::map<std::string, Waiting> queue_;  // by client, none empty
  int n_waiting_ = 0;
  std::vector<std::shared_ptr<Request>> pushed_out_;
  int accepted_ = 0;  // and not ended
  bool closed_ = false;
  std::condition_variable all_ended_;

  // Engine thread only.
  int promised_states_ = 0;  // the sum of Request::promised_states
  int stored_sessions_ = 0;
  Evictor* evictor_ = nullptr;
};

}  // namespace ovq
