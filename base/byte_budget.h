// Memory of the host that callers make a server use: one number of bytes for all, shared among
// clients.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace ovq {

// Nobody waits and nothing is reserved: who is refused holds nothing. A client is refused what
// would leave less than it then has, so one alone may have half of all, and whoever comes next
// finds something. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(size_t total) : total_(total) {}

  size_t total() const { return total_; }
  size_t held() const;

 private:
  friend class ByteHold;
  // Unset if taken; else the most that the client could have had.
  std::optional<size_t> Acquire(const std::string& client, size_t bytes);
  void Release(const std::string& client, size_t bytes);

  const size_t total_;
  mutable std::mutex mutex_;  // guards the next
  size_t held_ = 0;
  std::map<std::string, size_t> clients_;  // that hold something
};

// What one call holds; given back when it goes. Its own calls are not concurrent.
class ByteHold {
 public:
  ByteHold(std::shared_ptr<ByteBudget> budget, std::string client)
      : budget_(std::move(budget)), client_(std::move(client)) {}
  ~ByteHold() {
    if (bytes_ > 0) budget_->Release(client_, bytes_);
  }
  ByteHold(const ByteHold&) = delete;
  ByteHold& operator=(const ByteHold&) = delete;

  // So many more. Unset if taken; else the most that there could have been.
  std::optional<size_t> Acquire(size_t bytes);
  size_t bytes() const { return bytes_; }
  const ByteBudget& budget() const { return *budget_; }

 private:
  const std::shared_ptr<ByteBudget> budget_;
  const std::string client_;
  size_t bytes_ = 0;
};

}  // namespace ovq
