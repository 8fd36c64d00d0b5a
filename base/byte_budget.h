// ByteBudget: limits the host memory that clients' calls may hold, one number of bytes shared among
// clients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace ovq {

// Acquire never waits, and nothing is reserved. A client is refused if fewer bytes would then be
// left than it would hold: so a single client may have half of the budget, and the next one always
// finds some. Any thread.
class ByteBudget {
 public:
  explicit ByteBudget(size_t total) : total_(total) {}

  size_t total() const { return total_; }
  size_t held() const {
    std::lock_guard lock(mutex_);
    return held_;
  }
  // How often a client was refused.
  int64_t refusals() const {
    std::lock_guard lock(mutex_);
    return refusals_;
  }

 private:
  friend class ByteHold;
  // Empty if acquired; else the most bytes that the client could have acquired.
  std::optional<size_t> Acquire(const std::string& client, size_t bytes) {
    std::lock_guard lock(mutex_);
    const auto found = clients_.find(client);
    const size_t mine = found == clients_.end() ? 0 : found->second;
    const size_t free = total_ - held_;
    const size_t most = free > mine ? (free - mine) / 2 : 0;
    if (bytes > most) {
      ++refusals_;
      return most;
    }
    held_ += bytes;
    if (bytes > 0) clients_[client] += bytes;
    return std::nullopt;
  }
  void Release(const std::string& client, size_t bytes) {
    std::lock_guard lock(mutex_);
    held_ -= bytes;
    const auto found = clients_.find(client);
    found->second -= bytes;
    if (found->second == 0) clients_.erase(found);
  }

  const size_t total_;
  mutable std::mutex mutex_;  // guards the members below
  size_t held_ = 0;
  int64_t refusals_ = 0;
  std::map<std::string, size_t> clients_;  // bytes held by each client that holds any
};

// The bytes one call holds, released by the destructor. Not thread-safe.
class ByteHold {
 public:
  ByteHold(std::shared_ptr<ByteBudget> budget, std::string client)
      : budget_(std::move(budget)), client_(std::move(client)) {}
  ~ByteHold() {
    if (bytes_ > 0) budget_->Release(client_, bytes_);
  }
  ByteHold(const ByteHold&) = delete;
  ByteHold& operator=(const ByteHold&) = delete;

  // Acquires more bytes. Empty if acquired; else the most bytes there could have been.
  std::optional<size_t> Acquire(size_t bytes) {
    std::optional<size_t> refused = budget_->Acquire(client_, bytes);
    if (!refused) bytes_ += bytes;
    return refused;
  }
  // Releases what it holds beyond so many bytes.
  void ShrinkTo(size_t bytes) {
    if (bytes >= bytes_) return;
    budget_->Release(client_, bytes_ - bytes);
    bytes_ = bytes;
  }
  size_t bytes() const { return bytes_; }
  const ByteBudget& budget() const { return *budget_; }

 private:
  const std::shared_ptr<ByteBudget> budget_;
  const std::string client_;
  size_t bytes_ = 0;
};

}  // namespace ovq
