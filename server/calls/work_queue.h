// Worker threads, for work that threads of gRPC and of the engine must not do, and strands on them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "server/engine/common/host_time.h"

namespace ovq::engine {
class CancelSignal;
}

namespace ovq::server {

// A few threads that run functions: a client's in the order they came, but that a large message may
// be overtaken, clients in round robin, and, if there are several threads, never one client's on
// all of them. So a busy client does not keep others waiting. What functions take is charged to
// their client. Any thread.
class WorkQueue {
 public:
  // However much its client owes, a function that begins a call waits for no longer than this or
  // until the one before it has ended, so that no debt and no clock keeps a client out, and one in
  // debt has one thread.
  static constexpr auto kLongestHold = std::chrono::seconds(1);

  // nice: niceness of its threads; higher ones yield to others. longest_hold: another one for
  // tests. host_time outlives the queue.
  explicit WorkQueue(engine::HostTime& host_time, int n_threads, int nice = 0,
                     std::chrono::seconds longest_hold = kLongestHold);
  ~WorkQueue();  // runs the queued functions, then joins
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  // A larger message may take seconds to parse, as a schema of 240 KB does, which is known only
  // when it has been: a client has one such function on the threads at a time. Tokenizers that read
  // 5 MB a second are done with a smaller one in 13 ms, and one thread of them keeps any model
  // busy.
  static constexpr size_t kLargeMessage = size_t{64} << 10;

  void Run(const std::string& client, std::function<void()> work);
  // Runs what begins a call with a message of so many bytes: behind its client's other work, and
  // not while the client owes time (HostTime::MayBegin). Once `cancel` is set it waits for neither,
  // so that a call that was given up does not hold its connection and memory until its turn comes:
  // `work` then has little to do. Null: the call cannot be given up.
  void Begin(const std::string& client, size_t message_bytes, std::function<void()> work,
             const std::shared_ptr<engine::CancelSignal>& cancel = nullptr);

  engine::HostTime& host_time() const { return host_time_; }

 private:
  static constexpr auto kLookAtDebts = std::chrono::milliseconds(5);
  enum Kind { kWork, kBegin, kLargeBegin, kKinds };
  using Functions = std::map<int64_t, std::function<void()>>;  // by number: in the order they came
  struct Client {
    std::array<Functions, kKinds> queued;
    std::array<int, kKinds> running = {};
    bool held = false;       // what begins waits for the debt to be paid
    SteadyTime held_until;   // at most
    bool may_begin = false;  // the next that begins has waited

    bool begins() const { return running[kBegin] + running[kLargeBegin] > 0; }
    int n_running() const { return running[kWork] + running[kBegin] + running[kLargeBegin]; }
    bool idle() const;
    // The kind of its next function; kKinds if none may run.
    Kind Next() const;
  };
  using Clients = std::map<std::string, Client>;

  void Loop(int nice);
  bool Ready(const Client& client) const {
    return client.n_running() < most_running_ && client.Next() != kKinds;
  }
  // Returns its number.
  int64_t Add(const std::string& client, Kind kind, std::function<void()> function)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes what begins a call, if it still waits, work that has begun.
  void Hasten(const std::string& client, int64_t number) ABSL_LOCKS_EXCLUDED(mutex_);
  // Changes a client by change().
  template <class Function>
  void Change(Client& client, Function change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (Ready(client)) --ready_;
    change();
    if (Ready(client)) ++ready_;
  }
  // The next ready client after the last one served; end() if none is left. Holds ready clients
  // that owe time.
  Clients::iterator Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRun(const std::string& name, Client& client) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Lets clients go whose debt is paid or that have waited for long enough. Now and then.
  void LookAtDebts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct NextFunction {
    Clients::iterator client;
    std::function<void()> function;
    Kind kind = kWork;
  };
  // Waits for the next function and takes it out of the queue. False: the queue ends.
  bool Await(NextFunction& next) ABSL_LOCKS_EXCLUDED(mutex_);

  engine::HostTime& host_time_;
  const int most_running_;  // functions of one client at a time
  const std::chrono::seconds longest_hold_;
  absl::Mutex mutex_;
  Clients clients_ ABSL_GUARDED_BY(mutex_);  // with functions that wait or run
  int ready_ ABSL_GUARDED_BY(mutex_) = 0;    // number of clients that are ready
  int held_ ABSL_GUARDED_BY(mutex_) = 0;     // number of clients that are held
  int64_t n_queued_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyTime look_again_ ABSL_GUARDED_BY(mutex_);
  std::string last_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Runs functions one at a time, in the order they came, so their data needs no lock.
class Strand {
 public:
  Strand(WorkQueue& queue, std::string client) : queue_(queue), client_(std::move(client)) {}

  void SetClient(const std::string& client) { client_ = client; }  // before the first Post

  // Runs `work` on a thread of the queue. `owner` keeps this strand alive until then.
  void Post(std::shared_ptr<void> owner, std::function<void()> work);
  // Runs `work` on this thread, or, if another thread is running this strand's work, on that one.
  void Dispatch(std::function<void()> work);

 private:
  bool Push(std::function<void()> work);  // true: the caller must call Drain
  void Drain();

  WorkQueue& queue_;
  std::string client_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ovq::server
