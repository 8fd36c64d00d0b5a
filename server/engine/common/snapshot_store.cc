#include "server/engine/common/snapshot_store.h"

#include <utility>

#include "base/huge_pages.h"

namespace ovq::engine {

std::shared_ptr<const StateSnapshot> SnapshotStore::Copy(const StateHandle& state) {
  const std::shared_ptr<StateSnapshot> copy = Make(state);
  if (copy != nullptr) pool_.CopyOut(state, copy->span());
  return copy;
}

std::shared_ptr<StateSnapshot> SnapshotStore::Make(const StateHandle& state) {
  const size_t size = pool_.SnapshotBytes(state);
  if (size > budget_) return nullptr;
  StateSnapshot::Bytes bytes = Allocate(size);
  if (bytes == nullptr) return nullptr;
  ++held_->snapshots;
  return {new StateSnapshot{state.position, std::move(bytes), size},
          [held = held_](StateSnapshot* gone) {
            held->ReuseMemory(*gone);
            delete gone;
          }};
}

StateSnapshot::Bytes SnapshotStore::Allocate(size_t size) {
  StateSnapshot::Bytes spare;
  std::vector<StateSnapshot>& spares = held_->spares;
  const bool again = size >= kLargeBytes && !spares.empty();
  if (again) {
    spare = std::move(spares.back().bytes);
    held_->bytes -= spares.back().size;
    spares.pop_back();
  }
  StateSnapshot::Bytes bytes = AllocateSnapshot(size, std::move(spare));
  if (bytes != nullptr) held_->bytes += size;
  return bytes;
}

void SnapshotStore::Held::ReuseMemory(StateSnapshot& gone) {
  --snapshots;
  if (gone.size < kLargeBytes) {
    bytes -= gone.size;
  } else {
    spares.push_back(std::move(gone));
    if (spares.size() > max_spares) DropSpare();
  }
  while (snapshots == 0 && !spares.empty()) DropSpare();
}

void SnapshotStore::Held::DropSpare() {
  bytes -= spares.front().size;
  spares.erase(spares.begin());
}

const SnapshotStore::List& SnapshotStore::Find(const std::string& key) const {
  static const List kNone;
  const auto found = entries_.find(key);
  return found == entries_.end() ? kNone : found->second.list;
}

void SnapshotStore::Put(const std::string& key, List list) {
  const auto [entry, is_new] = entries_.try_emplace(key);
  if (is_new) entry->second.use = by_use_.insert(by_use_.end(), &entry->first);
  entry->second.list = std::move(list);
  if (!entry->second.list.empty()) return;
  by_use_.erase(entry->second.use);
  entries_.erase(entry);
}

void SnapshotStore::Use(const std::string& key) {
  by_use_.splice(by_use_.end(), by_use_, entries_.find(key)->second.use);
}

std::string SnapshotStore::EvictOne() {
  std::string key = *by_use_.front();
  const List& list = Find(key);
  Put(key, List(list.begin() + 1, list.end()));
  return key;
}

void SnapshotStore::Shrink() {
  while (bytes() > budget_) {
    const std::vector<StateSnapshot>& spares = held_->spares;
    const bool worth_it =
        held_->snapshots > 1 && spares.size() == 1 && spares[0].size <= budget_ / 4;
    if (!spares.empty() && !worth_it) {
      held_->DropSpare();
    } else if (!by_use_.empty()) {
      EvictOne();
    } else {
      return;  // until the snapshots that are being filled are put under keys
    }
  }
}

}  // namespace ovq::engine
