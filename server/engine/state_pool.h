// Session state memory under one byte budget. Each session owns a reserved address range in which
// pages are committed as its state grows. On release they go back, and whoever gets them next gets
// zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/common/state_memory.h"
#include "model/state_layout.h"

namespace ovq {

// One session's memory. Plain data owned by a Session; only StatePool changes it.
struct StateHandle {
  const StateLayout* layout = nullptr;
  std::byte* base = nullptr;  // the device's memory: kernels read it, the pool copies it
  int32_t slot_cap = 0;
  int64_t position = 0;        // committed up to here
  size_t committed_bytes = 0;  // = layout->bytes_at(position, slot_cap)
  size_t reserved_bytes = 0;   // counted against the budget
};

// Engine thread only.
class StatePool {
 public:
  // States in the memory of the context's device, in whose pages their layouts count.
  StatePool(size_t budget_bytes, DeviceContext& context);
  ~StatePool();

  // Reserves reserve_bytes of the budget (the session's cap, or its size at the last
  // position it can reach) and commits position 0. ResourceExhausted states bytes needed and free.
  absl::StatusOr<StateHandle> Acquire(const StateLayout& layout, int32_t slot_cap,
                                      size_t reserve_bytes);
  // Commits what the state has at `position`, within its reservation, but does not move it there.
  // ResourceExhausted if the system gives no memory, though the budget has it: the state is as it
  // was, and may try again.
  absl::Status Commit(StateHandle& state, int64_t position);
  // Moves it to `position`, for which Commit must not fail.
  void Grow(StateHandle& state, int64_t position);
  void Release(StateHandle& state);
  // Gives the memory back alone: the rest of the handle still says what the state was.
  void Vacate(StateHandle& state);
  // Gives back what of a reservation is not needed any more.
  void ShrinkReservation(StateHandle& state, size_t reserve_bytes);
  // Back to position 0, as Acquire gave it. ResourceExhausted as Commit has it: the state is as it
  // was.
  absl::Status Restart(StateHandle& state);
  // The same bytes in a new range.
  absl::StatusOr<StateHandle> Clone(const StateHandle& state, size_t reserve_bytes);
  // The same in one that was acquired for it. ResourceExhausted as Commit has it.
  absl::Status CopyTo(const StateHandle& state, StateHandle& copy);

  // What the extents of a state hold, end to end in the device's memory, and back.
  void Pack(const StateHandle& state, std::span<const StateExtent> extents, std::byte* packed) {
    memory_.Pack(state.base, extents, packed);
  }
  void Unpack(StateHandle& state, std::span<const StateExtent> extents, const std::byte* packed) {
    memory_.Unpack(state.base, extents, packed);
  }

  // A snapshot is the live bytes: the same on every device for the same layout of the layers.
  size_t SnapshotBytes(const StateHandle& state) const;
  void CopyOut(const StateHandle& state, std::span<std::byte> out);
  // ResourceExhausted: the host has no memory for it.
  absl::StatusOr<std::vector<std::byte>> Snapshot(const StateHandle& state);
  // Whether states lie in the host's memory, and the same bytes where they lie there, for a thread
  // that has the state to itself.
  bool on_host() const { return memory_.on_host(); }
  std::vector<std::span<std::byte>> Live(const StateHandle& state) const;
  // state must be at position 0; brings it to `position`. ResourceExhausted as Commit has it.
  absl::Status CopyIn(StateHandle& state, int64_t position, std::span<const std::byte> in);

  size_t budget_bytes() const { return budget_; }
  size_t reserved_bytes() const { return reserved_; }
  size_t committed_bytes() const { return committed_; }
  size_t free_bytes() const { return budget_ - reserved_; }
  absl::Status CheckFree(size_t bytes) const;  // ResourceExhausted, with its ErrorFacts
  int sessions() const { return sessions_; }

 private:
  // A new range at position 0; only what it has committed is counted.
  absl::StatusOr<StateHandle> Make(const StateLayout& layout, int32_t slot_cap,
                                   size_t reserve_bytes);
  // Commits what the extents at `position` have beyond `committed`.
  absl::Status Commit(StateHandle& state, int64_t position, std::span<const StateExtent> committed);

  const size_t budget_;
  StateMemory memory_;
  size_t reserved_ = 0;
  size_t committed_ = 0;
  int sessions_ = 0;
};

}  // namespace ovq
