#include "server/calls/work_queue.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/thread_name.h"
#include "server/engine/common/engine_api.h"

namespace ovq::server {

WorkQueue::WorkQueue(engine::HostTime& host_time, int n_threads, int nice,
                     std::chrono::seconds longest_hold)
    : host_time_(host_time),
      most_running_(std::max(n_threads - 1, 1)),
      longest_hold_(longest_hold) {
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
  return n_running() == 0 && std::ranges::all_of(queued, &Functions::empty);
}

WorkQueue::Kind WorkQueue::Client::Next() const {
  if (!queued[kWork].empty()) return kWork;
  if (held) return kKinds;
  const Functions &small = queued[kBegin], &large = queued[kLargeBegin];
  if (large.empty() || running[kLargeBegin] > 0) return small.empty() ? kKinds : kBegin;
  return !small.empty() && small.begin()->first < large.begin()->first ? kBegin : kLargeBegin;
}

void WorkQueue::Run(const std::string& client, std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  Add(client, kWork, std::move(work));
}

void WorkQueue::Begin(const std::string& client, size_t message_bytes, std::function<void()> work,
                      const std::shared_ptr<engine::CancelSignal>& cancel) {
  int64_t number = 0;
  {
    absl::MutexLock lock(&mutex_);
    number = Add(client, message_bytes > kLargeMessage ? kLargeBegin : kBegin, std::move(work));
    // With the lock, so that the engine, which `work` may give the signal to, sets its own later.
    if (cancel) cancel->SetWake([this, client, number] { Hasten(client, number); });
  }
  if (cancel && cancel->cancelled()) Hasten(client, number);
}

int64_t WorkQueue::Add(const std::string& client, Kind kind, std::function<void()> function) {
  Client& mine = clients_[client];
  Change(mine, [&] { mine.queued[kind].emplace(n_queued_, std::move(function)); });
  return n_queued_++;
}

void WorkQueue::Hasten(const std::string& client, int64_t number) {
  absl::MutexLock lock(&mutex_);
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  Client& mine = found->second;
  Change(mine, [&] {
    for (const Kind kind : {kBegin, kLargeBegin}) {
      if (auto node = mine.queued[kind].extract(number)) {
        mine.queued[kWork].insert(std::move(node));
      }
    }
    const bool waits = !mine.queued[kBegin].empty() || !mine.queued[kLargeBegin].empty();
    if (!waits && std::exchange(mine.held, false)) --held_;
  });
}

bool WorkQueue::MayRun(const std::string& name, Client& client) {
  if (client.Next() == kWork || client.may_begin || host_time_.MayBegin(name)) return true;
  host_time_.CountHeld();
  ++held_;
  Change(client, [this, &client] {
    client.held = true;
    client.held_until = std::chrono::steady_clock::now() + longest_hold_;
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
    next.function =
        std::move(mine.queued[next.kind].extract(mine.queued[next.kind].begin()).mapped());
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
