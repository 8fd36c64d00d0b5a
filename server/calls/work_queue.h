// Worker threads, for work that threads of gRPC and of the engine must not do, and strands on them.
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

namespace ovq::server {

// A few threads that run functions: a client's in the order they came, clients in round robin, and,
// if there are several threads, never one client's on all of them. So a busy client does not keep
// others waiting. Any thread.
class WorkQueue {
 public:
  // nice: niceness of its threads; higher ones yield to others.
  explicit WorkQueue(int n_threads, int nice = 0);
  ~WorkQueue();  // runs the queued functions, then joins
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
  // The next ready client after the last one served; end() if none is ready.
  Clients::iterator Next() ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const int most_running_;  // functions of one client at a time
  absl::Mutex mutex_;
  Clients clients_ ABSL_GUARDED_BY(mutex_);  // with functions that wait or run
  int ready_ ABSL_GUARDED_BY(mutex_) = 0;    // number of clients that are ready
  std::string last_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Runs functions one at a time, in the order they came, so their data needs no lock.
class Strand {
 public:
  Strand(WorkQueue& queue, std::string client) : queue_(queue), client_(std::move(client)) {}

  // Runs `work` on a thread of the queue. `owner` keeps this strand alive until then.
  void Post(std::shared_ptr<void> owner, std::function<void()> work);
  // Runs `work` on this thread, or, if another thread is running this strand's work, on that one.
  void Dispatch(std::function<void()> work);

 private:
  bool Push(std::function<void()> work);  // true: the caller must call Drain
  void Drain();

  WorkQueue& queue_;
  const std::string client_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ovq::server
