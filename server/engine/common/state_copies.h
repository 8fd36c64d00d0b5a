// Copies of states, for forks and for the answers to prompts, spread over iterations.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "server/engine/common/host_time.h"
#include "server/engine/common/inbox.h"

namespace ovq::engine {

// Makes copies in the order of their Add, and as many in an iteration as pass a number of bytes.
// Where batches run, they have at least as much time as the copies between them: long copies delay
// nobody's tokens. Engine thread only.
class StateCopies {
 public:
  // Makes one copy and adds its bytes to `bytes`. Returns whether more are to be made.
  using CopyOne = std::function<bool(size_t& bytes)>;

  StateCopies(size_t bytes_per_iteration, std::shared_ptr<Inbox> inbox, Clock clock,
              std::shared_ptr<HostTime> host_time)
      : bytes_per_iteration_(bytes_per_iteration),
        inbox_(std::move(inbox)),
        clock_(std::move(clock)),
        host_time_(std::move(host_time)) {}

  // at_once: the first copies are made now if no others wait, otherwise in the next iteration.
  void Add(CopyOne copy, bool at_once) {
    waiting_.push_back(std::move(copy));
    if (waiting_.size() == 1) at_once ? Run() : RunLater();
  }
  void NoteBatch() { batch_ran_ = true; }
  // Calls copy(), which copies a state within CopyOne. The client owes the time that it takes.
  template <class Copy>
  auto CopyFor(const std::string& client, Copy copy) {
    const SteadyTime begin = clock_.steady();
    auto result = copy();
    host_time_->Owe(client, TimeBetween(begin, clock_.steady()));
    return result;
  }

 private:
  void RunLater() {
    inbox_->Post([this] { Run(); });
  }
  void Run() {
    const SteadyTime begin = clock_.steady();
    if (std::exchange(batch_ran_, false) && begin < again_) return RunLater();
    size_t bytes = 0;
    while (!waiting_.empty() && bytes < bytes_per_iteration_) {
      if (!waiting_.front()(bytes)) waiting_.pop_front();
    }
    const SteadyTime end = clock_.steady();
    again_ = end + (end - begin);
    if (!waiting_.empty()) RunLater();
  }

  const size_t bytes_per_iteration_;
  const std::shared_ptr<Inbox> inbox_;
  const Clock clock_;
  const std::shared_ptr<HostTime> host_time_;
  bool batch_ran_ = false;  // since the last Run
  SteadyTime again_;        // until then batches have their part
  std::deque<CopyOne> waiting_;
};

}  // namespace ovq::engine
