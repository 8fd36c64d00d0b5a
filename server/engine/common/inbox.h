// The engine thread's inbox: commands from other threads, and a ring that wakes it.
#pragma once

#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"

namespace ovq::engine {

// Shared with streams, which ring it and may outlive the engine.
class Inbox : public std::enable_shared_from_this<Inbox> {
 public:
  using Command = std::function<void()>;

  // --- any thread ---
  void Ring() {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    cv_.notify_one();
  }
  void Post(Command command) {
    {
      std::lock_guard lock(mutex_);
      commands_.push_back(std::move(command));
    }
    Ring();
  }
  // A function that rings, for what may outlive the engine.
  std::function<void()> waker() {
    return [inbox = shared_from_this()] { inbox->Ring(); };
  }
  // Runs fn on the engine thread between two iterations and waits for its result.
  template <class T>
  T Call(std::function<T()> fn) {
    return Await<T>([&fn](const std::function<void(T)>& tell) { tell(fn()); });
  }
  // Runs `begin` on the engine thread and waits until it, or a later callback, passes the result to
  // `tell`, exactly once.
  template <class T>
  T Await(std::function<void(const std::function<void(T)>& tell)> begin) {
    auto result = std::make_shared<std::promise<T>>();
    std::future<T> future = result->get_future();
    Post([&begin, result] { begin([result](T value) { result->set_value(std::move(value)); }); });
    return future.get();
  }

  // --- engine thread ---
  // Returns at once after a ring since the last RunAll.
  void Wait(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    cv_.wait_until(lock, After(std::chrono::steady_clock::now(), timeout),
                   [this] { return rung_; });
  }
  // Runs the commands posted so far, in order. Returns whether there was a ring since the last
  // RunAll.
  bool RunAll() {
    std::vector<Command> commands;
    bool rung;
    {
      std::lock_guard lock(mutex_);
      commands.swap(commands_);
      rung = std::exchange(rung_, false);
    }
    for (Command& command : commands) command();
    return rung;
  }

 private:
  std::mutex mutex_;
  std::condition_variable cv_;
  bool rung_ = false;
  std::vector<Command> commands_;
};

}  // namespace ovq::engine
