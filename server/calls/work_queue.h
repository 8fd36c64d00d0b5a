// Threads for work that gRPC's own threads and the engine thread must not do, and strands on them.
#pragma once

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

namespace ovq {

// A few threads that run functions: each client's in the order they came, clients in turn, and, if
// there are several threads, never a client's on all of them. So one that has much to do keeps no
// other waiting. Any thread.
class WorkQueue {
 public:
  // nice: how much later than others its threads run, where processors are few.
  explicit WorkQueue(int n_threads, int nice = 0);
  ~WorkQueue();  // runs what is queued, then joins
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void Run(const std::string& client, std::function<void()> work);

 private:
  struct Client {
    std::deque<std::function<void()>> work;
    int running = 0;
  };
  using Clients = std::map<std::string, Client>;

  void Loop(int nice);
  bool Ready(const Client& client) const {
    return !client.work.empty() && client.running < most_running_;
  }
  // The next of `clients_` after the one that had its turn last; end() if none is ready.
  Clients::iterator Next() ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const int most_running_;  // of a client
  absl::Mutex mutex_;
  Clients clients_ ABSL_GUARDED_BY(mutex_);  // that wait or run
  int ready_ ABSL_GUARDED_BY(mutex_) = 0;    // of them
  std::string last_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Runs functions one at a time, in the order they came: what they touch needs no lock.
class Strand {
 public:
  Strand(WorkQueue& queue, std::string client) : queue_(queue), client_(std::move(client)) {}

  // Runs it on a thread of the queue. `owner` keeps this strand alive until then.
  void Post(std::shared_ptr<void> owner, std::function<void()> work);
  // Runs it on the calling thread, or, while another one runs this strand's work, there.
  void Dispatch(std::function<void()> work);

 private:
  bool Push(std::function<void()> work);  // true: the caller must Drain
  void Drain();

  WorkQueue& queue_;
  const std::string client_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ovq
