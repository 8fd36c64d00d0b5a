// Threads for work that gRPC's own threads and the engine thread must not do, and strands on them.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ovq {

// A few threads that run functions in the order they came. Any thread.
class WorkQueue {
 public:
  explicit WorkQueue(int n_threads);
  ~WorkQueue();  // runs what is queued, then joins
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  void Run(std::function<void()> work);

 private:
  void Loop();

  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// Runs functions one at a time, in the order they came: what they touch needs no lock.
class Strand {
 public:
  explicit Strand(WorkQueue& queue) : queue_(queue) {}

  // Runs it on a thread of the queue. `owner` keeps this strand alive until then.
  void Post(std::shared_ptr<void> owner, std::function<void()> work);
  // Runs it on the calling thread, or, while another one runs this strand's work, there.
  void Dispatch(std::function<void()> work);

 private:
  bool Push(std::function<void()> work);  // true: the caller must Drain
  void Drain();

  WorkQueue& queue_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ovq
