// A store of snapshots in host memory, for checkpoints and for cached prefixes.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/engine/common/state_pool.h"

namespace ovq::engine {

// Keeps snapshots of states under keys, within one byte budget, in the order in which the keys were
// used. A snapshot under several keys counts once. Not thread-safe.
class SnapshotStore {
 public:
  using List = std::vector<std::shared_ptr<const StateSnapshot>>;  // by ascending position

  // max_spares: how much memory of large snapshots that went is kept for the next ones, in blocks.
  SnapshotStore(size_t budget_bytes, StatePool& pool, size_t max_spares = 0)
      : budget_(budget_bytes), pool_(pool), held_(std::make_shared<Held>(max_spares)) {}

  // Copies the current state. Null if the copy exceeds the budget or memory runs out.
  std::shared_ptr<const StateSnapshot> Copy(const StateHandle& state);
  // Makes a snapshot whose bytes the caller fills in, possibly on another thread. It must be
  // destroyed on the engine thread. Null as Copy.
  std::shared_ptr<StateSnapshot> Make(const StateHandle& state);

  // The snapshots under a key, if there are any.
  const List& Find(const std::string& key) const;
  // Replaces the snapshots under a key. A new key is the one used last; others keep their place.
  void Put(const std::string& key, List list);
  void Use(const std::string& key);  // from now on it is the one used last; it has snapshots
  // Drops the first snapshot of the key used longest ago, and returns that key. There must be one.
  std::string EvictOne();
  // Drops spare memory and evicts snapshots until the bytes are within the budget.
  void Shrink();

  // Bytes of snapshots and of spare memory for later ones.
  size_t bytes() const { return held_->bytes; }
  size_t budget_bytes() const { return budget_; }

 private:
  struct Entry {
    List list;  // not empty
    std::list<const std::string*>::iterator use;
  };
  // Shared with the snapshots: each subtracts its bytes when its last key drops it.
  struct Held {
    explicit Held(size_t most) : max_spares(most) {}
    void ReuseMemory(StateSnapshot& gone);
    void DropSpare();

    const size_t max_spares;
    size_t bytes = 0;
    size_t snapshots = 0;
    // Memory of large snapshots that were dropped last, for reuse: fresh memory costs the system
    // ten times as long as filling existing pages. Freed with the last snapshot.
    std::vector<StateSnapshot> spares;
  };
  // Allocates and counts `size` bytes, reusing spare memory if possible. Null if memory runs out.
  StateSnapshot::Bytes Allocate(size_t size);

  const size_t budget_;
  StatePool& pool_;
  const std::shared_ptr<Held> held_;
  std::unordered_map<std::string, Entry> entries_;
  std::list<const std::string*> by_use_;  // keys, the one used longest ago first
};

}  // namespace ovq::engine
