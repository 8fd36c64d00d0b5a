#include "server/engine/common/inbox.h"

namespace ovq::engine {

void Inbox::Ring() {
  {
    std::lock_guard lock(mutex_);
    rung_ = true;
  }
  cv_.notify_one();
}

void Inbox::Post(Command command) {
  {
    std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
  }
  Ring();
}

void Inbox::Wait(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  cv_.wait_until(lock, After(std::chrono::steady_clock::now(), timeout), [this] { return rung_; });
}

bool Inbox::RunAll() {
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

}  // namespace ovq::engine
