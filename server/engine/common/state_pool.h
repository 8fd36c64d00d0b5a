// State memory of all sequences, under one byte budget. Each state owns a reserved address range in
// which pages are committed as it grows. Released pages are zero when they are committed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/state_memory.h"
#include "model/state_layout.h"

namespace ovq::engine {

// The memory of one sequence's state. Plain data that only StatePool changes.
struct StateHandle {
  const model::StateLayout* layout = nullptr;
  std::byte* base = nullptr;  // device memory
  int32_t slot_cap = 0;
  int64_t position = 0;        // tokens consumed
  size_t committed_bytes = 0;  // = layout->bytes_at(position, slot_cap)
  size_t reserved_bytes = 0;   // counted against the budget
};

// A state's live bytes in host memory. They are the same on every device.
struct StateSnapshot {
  // Memory comes from malloc, whose realloc can reuse a block at another size without touching its
  // pages.
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  using Bytes = std::unique_ptr<std::byte[], Free>;

  int64_t position = 0;  // tokens consumed
  Bytes bytes = {};      // `size` bytes in the order of StatePool::CopyOut
  size_t size = 0;

  std::span<std::byte> span() const { return {bytes.get(), size}; }
};
// Allocates a snapshot's bytes, in the memory of `spare` if there is one. Null if memory runs out.
StateSnapshot::Bytes AllocateSnapshot(size_t size, StateSnapshot::Bytes spare = {});

// Engine thread only.
class StatePool {
 public:
  // States lie in the memory of the context's device; their layouts count in its pages.
  StatePool(size_t budget_bytes, kernels::DeviceContext& context);
  ~StatePool();

  // Makes a state at position 0. Reserves reserve_bytes of the budget: the layout's maximum, or the
  // state's size at the last position it can reach. ResourceExhausted states bytes needed and free.
  absl::StatusOr<StateHandle> Acquire(const model::StateLayout& layout, int32_t slot_cap,
                                      size_t reserve_bytes);
  // Commits the memory that the state needs at `position`, within its reservation; the state keeps
  // its position. ResourceExhausted if the system has no memory, though the budget does: the state
  // is unchanged, and Commit may be called again.
  absl::Status Commit(StateHandle& state, int64_t position);
  // Commit, and sets the state's position. Commit must not fail: call it before.
  void Grow(StateHandle& state, int64_t position);
  // Frees the state's memory and reservation, and resets the handle.
  void Release(StateHandle& state);
  // Frees memory and reservation alone: the rest of the handle still describes the state.
  void Vacate(StateHandle& state);
  // Lowers the reservation to reserve_bytes.
  void ShrinkReservation(StateHandle& state, size_t reserve_bytes);
  // Resets the state to position 0, as after Acquire. ResourceExhausted as in Commit: the state is
  // unchanged.
  absl::Status Restart(StateHandle& state);
  // Copies the state to a new range.
  absl::StatusOr<StateHandle> Clone(const StateHandle& state, size_t reserve_bytes);
  // Copies the state into `copy`, which was acquired for it. ResourceExhausted as in Commit.
  absl::Status CopyTo(const StateHandle& state, StateHandle& copy);

  // Copies the extents of a state end to end into device memory, and back.
  void Pack(const StateHandle& state, std::span<const kernels::StateExtent> extents,
            std::byte* packed) {
    memory_.Pack(state.base, extents, packed);
  }
  void Unpack(StateHandle& state, std::span<const kernels::StateExtent> extents,
              const std::byte* packed) {
    memory_.Unpack(state.base, extents, packed);
  }

  size_t SnapshotBytes(const StateHandle& state) const;
  void CopyOut(const StateHandle& state, std::span<std::byte> out);
  // CopyOut into new host memory. ResourceExhausted if there is none.
  absl::StatusOr<StateSnapshot> Snapshot(const StateHandle& state);
  // Whether states are in host memory. If so, Live returns the places of a snapshot's bytes, for a
  // thread that has exclusive use of the state.
  bool on_host() const { return memory_.on_host(); }
  std::vector<std::span<std::byte>> Live(const StateHandle& state) const;
  // Restores a snapshot into a state at position 0, and moves it to `position`. ResourceExhausted
  // as in Commit.
  absl::Status CopyIn(StateHandle& state, int64_t position, std::span<const std::byte> in);

  size_t budget_bytes() const { return budget_; }
  size_t reserved_bytes() const { return reserved_; }
  size_t committed_bytes() const { return committed_; }
  size_t free_bytes() const { return budget_ - reserved_; }
  absl::Status CheckFree(size_t bytes) const;  // ResourceExhausted, with its ErrorFacts
  int sessions() const { return sessions_; }

 private:
  // Makes a state at position 0. Counts its committed bytes, but not yet its reservation.
  absl::StatusOr<StateHandle> Make(const model::StateLayout& layout, int32_t slot_cap,
                                   size_t reserve_bytes);
  // Commits the extents at `position`, except those in `committed`.
  absl::Status Commit(StateHandle& state, int64_t position,
                      std::span<const kernels::StateExtent> committed);

  const size_t budget_;
  kernels::StateMemory memory_;
  size_t reserved_ = 0;
  size_t committed_ = 0;
  int sessions_ = 0;
};

}  // namespace ovq::engine
