#include "base/byte_budget.h"

namespace ovq {

size_t ByteBudget::held() const {
  std::lock_guard lock(mutex_);
  return held_;
}

std::optional<size_t> ByteBudget::Acquire(const std::string& client, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(client);
  const size_t mine = found == clients_.end() ? 0 : found->second;
  const size_t free = total_ - held_;
  const size_t most = free > mine ? (free - mine) / 2 : 0;
  if (bytes > most) return most;
  if (bytes == 0) return std::nullopt;
  held_ += bytes;
  clients_[client] += bytes;
  return std::nullopt;
}

void ByteBudget::Release(const std::string& client, size_t bytes) {
  std::lock_guard lock(mutex_);
  held_ -= bytes;
  const auto found = clients_.find(client);
  found->second -= bytes;
  if (found->second == 0) clients_.erase(found);
}

std::optional<size_t> ByteHold::Acquire(size_t bytes) {
  std::optional<size_t> refused = budget_->Acquire(client_, bytes);
  if (!refused) bytes_ += bytes;
  return refused;
}

}  // namespace ovq
