#include "server/calls/work_queue.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace ovq::server {

WorkQueue::WorkQueue(int n_threads, int nice) : most_running_(std::max(n_threads - 1, 1)) {
  for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this, nice] { Loop(nice); });
}

WorkQueue::~WorkQueue() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void WorkQueue::Run(const std::string& client, std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  Client& mine = clients_[client];
  const bool was_ready = Ready(mine);
  mine.work.push_back(std::move(work));
  if (!was_ready && Ready(mine)) ++ready_;
}

WorkQueue::Clients::iterator WorkQueue::Next() {
  const auto ready = [this](const auto& entry) { return Ready(entry.second); };
  const auto next = std::find_if(clients_.upper_bound(last_), clients_.end(), ready);
  return next != clients_.end() ? next : std::find_if(clients_.begin(), clients_.end(), ready);
}

void WorkQueue::Loop(int nice) {
  NameThisThread("calls");
  // For this thread only. Raising the niceness is always allowed.
  if (nice > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice);
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return ready_ > 0 || (ending_ && clients_.empty());
  };
  for (;;) {
    std::function<void()> work;
    Clients::iterator client;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(&ready));
      if (ready_ == 0) return;
      client = Next();
      last_ = client->first;
      work = std::move(client->second.work.front());
      client->second.work.pop_front();
      ++client->second.running;
      if (!Ready(client->second)) --ready_;
    }
    work();
    work = nullptr;
    absl::MutexLock lock(&mutex_);
    const bool was_ready = Ready(client->second);
    --client->second.running;
    if (!was_ready && Ready(client->second)) ++ready_;
    if (client->second.work.empty() && client->second.running == 0) clients_.erase(client);
  }
}

void Strand::Post(std::shared_ptr<void> owner, std::function<void()> work) {
  if (!Push(std::move(work))) return;
  queue_.Run(client_, [this, owner = std::move(owner)] { Drain(); });
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

}  // namespace ovq::server
