// Session state memory under one byte budget. Each session owns a reserved address range in which
// pages are committed as its state grows. Released pages are zero when they are committed again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/state_memory.h"
#include "model/state_layout.h"

namespace ovq {

// The memory of one sequence's state. Plain data that only StatePool changes.
struct StateHandle {
  const StateLayout* layout = nullptr;
  std::byte* base = nullptr;  // device memory
  int32_t slot_cap = 0;
  int64_t position = 0;        // tokens consumed
  size_t committed_bytes = 0;  // = layout->bytes_at(position, slot_cap)
  size_t reserved_bytes = 0;   // counted against the budget
};

// Engine thread only.
class StatePool {
 public:
  // States lie in the memory of the context's device; their layouts count in its pages.
  StatePool(size_t budget_bytes, DeviceContext& context);
  ~StatePool();

  // Reserves reserve_bytes of the budget (the session's cap, or its size at the last
  // position it can reach) and commits position 0. ResourceExhausted states bytes needed and free.
  absl::StatusOr<StateHandle> Acquire(const StateLayout& layout, int32_t slot_cap,
                                      size_t reserve_bytes);
  // Commits the memory of the state at `position`, within its reservation, but does not move the
  // state there. ResourceExhausted if the system gives no memory, though the budget has it: the
  // state is unchanged, and Commit may be called again.
  absl::Status Commit(StateHandle& state, int64_t position);
  // Moves the state to `position`, for which Commit must not fail.
  void Grow(StateHandle& state, int64_t position);
  void Release(StateHandle& state);
  // Releases only the memory: the rest of the handle still describes the state.
  void Vacate(StateHandle& state);
  // Lowers the reservation to reserve_bytes.
  void ShrinkReservation(StateHandle& state, size_t reserve_bytes);
  // Resets the state to position 0, as after Acquire. ResourceExhausted as in Commit: the state is
  // unchanged.
  absl::Status Restart(StateHandle& state);
  // Copies the state to a new range.
  absl::StatusOr<StateHandle> Clone(const StateHandle& state, size_t reserve_bytes);
  // Copies the state to one acquired for it. ResourceExhausted as in Commit.
  absl::Status CopyTo(const StateHandle& state, StateHandle& copy);

  // Copies the extents of a state end to end into device memory, and back.
  void Pack(const StateHandle& state, std::span<const StateExtent> extents, std::byte* packed) {
    memory_.Pack(state.base, extents, packed);
  }
  void Unpack(StateHandle& state, std::span<const StateExtent> extents, const std::byte* packed) {
    memory_.Unpack(state.base, extents, packed);
  }

  // A snapshot consists of the live bytes, equal on every device for the same layout of the layers.
  size_t SnapshotBytes(const StateHandle& state) const;
  void CopyOut(const StateHandle& state, std::span<std::byte> out);
  // ResourceExhausted: the host has no memory for it.
  absl::StatusOr<std::vector<std::byte>> Snapshot(const StateHandle& state);
  // Whether states lie in host memory. If so, Live gives a snapshot's bytes in place, for a thread
  // that has the state to itself.
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
  // Makes a new range at position 0. Counts only the committed bytes against the budget's use.
  absl::StatusOr<StateHandle> Make(const StateLayout& layout, int32_t slot_cap,
                                   size_t reserve_bytes);
  // Commits what the extents at `position` have beyond those in `committed`.
  absl::Status Commit(StateHandle& state, int64_t position, std::span<const StateExtent> committed);

  const size_t budget_;
  StateMemory memory_;
  size_t reserved_ = 0;
  size_t committed_ = 0;
  int sessions_ = 0;
};

}  // namespace ovq
