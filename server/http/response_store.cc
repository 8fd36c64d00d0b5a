#include "server/http/response_store.h"

#include <utility>

namespace ovq::server {

size_t ResponseStore::Bytes(const std::string& id, const Stored& stored) {
  constexpr size_t kEntryBytes = 256;
  return kEntryBytes + 2 * id.size() + stored.json.size() + stored.instructions.size();
}

void ResponseStore::Put(const std::string& session_id, Stored stored) {
  const size_t bytes = Bytes(session_id, stored);
  std::lock_guard lock(mutex_);
  Drop(session_id);
  if (bytes > budget_) return;
  while (bytes_ + bytes > budget_) Drop(std::string(by_age_.front()));
  bytes_ += bytes;
  const auto age = by_age_.insert(by_age_.end(), session_id);
  entries_.emplace(session_id, Entry{std::move(stored), age});
}

std::optional<ResponseStore::Stored> ResponseStore::Get(const std::string& session_id) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(session_id);
  if (found == entries_.end()) return std::nullopt;
  return found->second.stored;
}

void ResponseStore::Remove(const std::string& session_id) {
  std::lock_guard lock(mutex_);
  Drop(session_id);
}

void ResponseStore::Drop(const std::string& session_id) {
  const auto found = entries_.find(session_id);
  if (found == entries_.end()) return;
  bytes_ -= Bytes(session_id, found->second.stored);
  by_age_.erase(found->second.age);
  entries_.erase(found);
}

}  // namespace ovq::server
