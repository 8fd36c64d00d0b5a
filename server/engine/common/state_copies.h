// Copies of states, for forks and for the answers to prompts, spread over iterations.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "server/engine/common/inbox.h"

namespace ovq::engine {

// Makes copies in the order of their Add, and as many in an iteration as pass a number of bytes:
// long copies delay nobody's tokens. Engine thread only.
class StateCopies {
 public:
  // Makes one copy and adds its bytes to `bytes`. Returns whether more are to be made.
  using CopyOne = std::function<bool(size_t& bytes)>;

  StateCopies(size_t bytes_per_iteration, std::shared_ptr<Inbox> inbox)
      : bytes_per_iteration_(bytes_per_iteration), inbox_(std::move(inbox)) {}

  // at_once: the first copies are made now if no others wait, otherwise in the next iteration.
  void Add(CopyOne copy, bool at_once) {
    waiting_.push_back(std::move(copy));
    if (waiting_.size() == 1) at_once ? Run() : RunLater();
  }

 private:
  void RunLater() {
    inbox_->Post([this] { Run(); });
  }
  void Run() {
    size_t bytes = 0;
    while (!waiting_.empty() && bytes < bytes_per_iteration_) {
      if (!waiting_.front()(bytes)) waiting_.pop_front();
    }
    if (!waiting_.empty()) RunLater();
  }

  const size_t bytes_per_iteration_;
  const std::shared_ptr<Inbox> inbox_;
  std::deque<CopyOne> waiting_;
};

}  // namespace ovq::engine
