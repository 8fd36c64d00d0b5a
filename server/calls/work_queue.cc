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

void WorkQueue::Run(const std::string& client, std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  Client& mine = clients_[client];
  Change(mine, [&] { mine.work.push_back(std::move(work)); });
}

void WorkQueue::Begin(const std::string& client, std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  Client& mine = clients_[client];
  Change(mine, [&] { mine.begins.push_back(std::move(work)); });
}

bool WorkQueue::MayRun(const std::string& name, Client& client) {
  if (!client.work.empty() || client.may_begin || host_time_.MayBegin(name)) return true;
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
    if (!ending_ && now < client.held_until && !host_time_.MayBegin(name)) continue;
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

bool WorkQueue::Await(Clients::iterator& client, std::function<void()>& work) {
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
    client = Next();
  } while (client == clients_.end());
  Client& mine = client->second;
  last_ = client->first;
  Change(mine, [&] {
    if (mine.work.empty()) mine.may_begin = false;
    std::deque<std::function<void()>>& from = mine.work.empty() ? mine.begins : mine.work;
    work = std::move(from.front());
    from.pop_front();
    ++mine.running;
  });
  return true;
}

void WorkQueue::Loop(int nice) {
  NameThisThread("calls");
  // For this thread only. Raising the niceness is always allowed.
  if (nice > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice);
  Clients::iterator client;
  std::function<void()> work;
  while (Await(client, work)) {
    {
      const engine::HostMeter meter(host_time_, client->first);
      work();
      work = nullptr;
    }
    absl::MutexLock lock(&mutex_);
    Client& mine = client->second;
    Change(mine, [&mine] { --mine.running; });
    if (mine.work.empty() && mine.begins.empty() && mine.running == 0) clients_.erase(client);
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
