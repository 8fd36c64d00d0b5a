// Defines OwnedTable, the sessions of a shared store that this server owns, as far as it knows.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace ovq::store {

// Thread-safe. Owned: what is known of one session; its `told`: the listener was told of it as
// found.
template <class Owned>
class OwnedTable {
 public:
  // Sets the function that is told of lost sessions; null for none. It must not call this object.
  void SetListener(std::function<void(const std::string& id)> lost) {
    std::lock_guard lock(mutex_);
    lost_ = std::move(lost);
  }
  // Remembers that the listener was told of a session as found, for as long as it is here.
  void SetTold(const std::string& id) {
    std::lock_guard lock(mutex_);
    if (by_id_.contains(id)) by_id_.at(id).told = true;
  }
  bool WasTold(const std::string& id) const {
    std::lock_guard lock(mutex_);
    const Owned* const owned = Find(id);
    return owned != nullptr && owned->told;
  }
  bool Contains(const std::string& id) const {
    std::lock_guard lock(mutex_);
    return by_id_.contains(id);
  }
  size_t size() const {
    std::lock_guard lock(mutex_);
    return by_id_.size();
  }

 protected:
  // A session that is here, or null. Needs mutex_.
  const Owned* Find(const std::string& id) const {
    const auto found = by_id_.find(id);
    return found == by_id_.end() ? nullptr : &found->second;
  }

  mutable std::mutex mutex_;  // guards the members below
  std::map<std::string, Owned> by_id_;
  std::function<void(const std::string&)> lost_;
};

}  // namespace ovq::store
