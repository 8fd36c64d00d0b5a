#include "server/calls/work_queue.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/thread_name.h"

namespace ovq::server {

WorkQueue::WorkQueue(engine::HostTime& host_time, int n_threads, int nice)
    : host_time_(host_time), most_running_(std::max(n_threads - 1, 1)) {
  for (int i = 0; i < n_threads; ++i) threads_.emplace_back([this, nice] { Loop(nice); });
}

WorkQueue::~WorkQueue() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

bool WorkQueue::Client::idle() const {
  return n_running() == 0 && std::ranges::all_of(queued, &std::deque<Queued>::empty);
}

WorkQueue::Kind WorkQueue::Client::Next() const {
  if (!queued[kWork].empty()) return kWork;
  if (held) return kKinds;
  const std::deque<Queued>&small = queued[kBegin], &large = queued[kLargeBegin];
  if (large.empty() || running[kLargeBegin] > 0) return small.empty() ? kKinds : kBegin;
  return !small.empty() && small.front().number < large.front().number ? kBegin : kLargeBegin;
}

void WorkQueue::Run(const std::string& client, std::function<void()> work) {
  Add(client, kWork, std::move(work));
}

void WorkQueue::Begin(const std::string& client, size_t message_bytes, std::function<void()> work) {
  Add(client, message_bytes > kLargeMessage ? kLargeBegin : kBegin, std::move(work));
}

void WorkQueue::Add(const std::string& client, Kind kind, std::function<void()> function) {
  absl::MutexLock lock(&mutex_);
  Client& mine = clients_[client];
  Change(mine, [&] { mine.queued[kind].push_back({std::move(function), n_queued_}); });
  ++n_queued_;
}

bool WorkQueue::MayRun(const std::string& name, Client& client) {
  if (client.Next() == kWork || client.may_begin || host_time_.MayBegin(name)) return true;
  host_time_.CountHeld();
  ++held_;
  Change(client, [&client] {
    client.held = true;
    client.held_until = std::chrono::steady_clock::now() + kLongestHold;
  });
  return false;
}

void WorkQueue::LookAtDebts() {
  const SteadyTime now = std::chrono::steady_clock::now();
  if (now < look_again_) return;
  look_again_ = now + kLookAtDebts;
  for (auto& [name, client] : clients_) {
    if (!client.held) continue;
    const bool waits = now < client.held_until || client.begins();
    if (!ending_ && waits && !host_time_.MayBegin(name)) continue;
    --held_;
    Change(client, [&each = client] {
      each.held = false;
      each.may_begin = true;
    });
  }
}

WorkQueue::Clients::iterator WorkQueue::Next() {
  auto client = clients_.upper_bound(last_);
  for (size_t i = 0; i < clients_.size(); ++i, ++client) {
    if (client == clients_.end()) client = clients_.begin();
    if (Ready(client->second) && MayRun(client->first, client->second)) return client;
  }
  return clients_.end();
}

bool WorkQueue::Await(NextFunction& next) {
  const auto ready = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return ready_ > 0 || (ending_ && clients_.empty());
  };
  const auto ready_or_held = [this, &ready]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return held_ > 0 || ready();
  };
  absl::MutexLock lock(&mutex_);
  do {
    mutex_.Await(absl::Condition(&ready_or_held));
    if (held_ > 0) {  // debts are paid without a word to this queue
      mutex_.AwaitWithTimeout(absl::Condition(&ready), absl::FromChrono(kLookAtDebts));
      LookAtDebts();
    } else if (ready_ == 0) {
      return false;
    }
    next.client = Next();
  } while (next.client == clients_.end());
  Client& mine = next.client->second;
  last_ = next.client->first;
  Change(mine, [&] {
    next.kind = mine.Next();
    if (next.kind != kWork) mine.may_begin = false;
    next.function = std::move(mine.queued[next.kind].front().function);
    mine.queued[next.kind].pop_front();
    ++mine.running[next.kind];
  });
  return true;
}

void WorkQueue::Loop(int nice) {
  NameThisThread("calls");
  // For this thread only. Raising the niceness is always allowed.
  if (nice > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice);
  NextFunction next;
  while (Await(next)) {
    {
      const engine::HostMeter meter(host_time_, next.client->first);
      next.function();
      next.function = nullptr;
    }
    absl::MutexLock lock(&mutex_);
    Client& mine = next.client->second;
    Change(mine, [&] { --mine.running[next.kind]; });
    if (mine.idle()) clients_.erase(next.client);
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
  const engine::HostMeter meter(queue_.host_time(), client_);
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
