#include "server/rpc/grpc_strand.h"

#include <utility>

namespace ovq {

WorkQueue::WorkQueue(int n_threads) {
  for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

WorkQueue::~WorkQueue() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkQueue::Run(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  work_.push_back(std::move(work));
}

void WorkQueue::Loop() {
  const auto ready = [this]()
                         ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ending_ || !work_.empty(); };
  for (;;) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&ready));
      if (work_.empty()) return;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

void Strand::Post(std::shared_ptr<void> owner, std::function<void()> work) {
  if (!Push(std::move(work))) return;
  queue_.Run([this, owner = std::move(owner)] { Drain(); });
}

void Strand::Dispatch(std::function<void()> work) {
  if (Push(std::move(work))) Drain();
}

bool Strand::Push(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  work_.push_back(std::move(work));
  return !std::exchange(running_, true);
}

void Strand::Drain() {
  for (;;) {
    std::function<void()> work;
    {
      absl::MutexLock lock(&mutex_);
      if (work_.empty()) {
        running_ = false;
        return;
      }
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
  }
}

}  // namespace ovq
