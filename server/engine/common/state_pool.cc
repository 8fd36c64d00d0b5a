#include "server/engine/common/state_pool.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/huge_pages.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"

namespace ovq::engine {
namespace {

// The end of a sentence about the host's memory. errno knows nothing of a GPU's.
std::string SystemReason(const kernels::StateMemory& memory) {
  return memory.on_host() ? absl::StrCat(": ", std::strerror(errno)) : "";
}

}  // namespace

StateSnapshot::Bytes AllocateSnapshot(size_t size, StateSnapshot::Bytes spare) {
  std::byte* const before = spare.release();
  auto* const bytes = static_cast<std::byte*>(std::realloc(before, size));
  if (bytes == nullptr) {
    std::free(before);
  } else if (before == nullptr && size >= kLargeBytes) {
    PreferHugePages(bytes, size);
  }
  return StateSnapshot::Bytes(bytes);
}

StatePool::StatePool(size_t budget_bytes, kernels::DeviceContext& context)
    : budget_(budget_bytes), memory_(context) {}

StatePool::~StatePool() { Check(sessions_ == 0, "every session state is released"); }

absl::Status StatePool::CheckFree(size_t bytes) const {
  if (bytes <= free_bytes()) return absl::OkStatus();
  return WithFacts(
      absl::ResourceExhaustedError(absl::StrCat("state memory: ", bytes, " bytes needed, ",
                                                free_bytes(), " of ", budget_, " bytes free")),
      {.bytes_needed = bytes, .bytes_free = free_bytes()});
}

absl::StatusOr<StateHandle> StatePool::Acquire(const model::StateLayout& layout, int32_t slot_cap,
                                               size_t reserve_bytes) {
  Check(layout.page_bytes() % memory_.page_bytes() == 0, "the layout counts in the device's pages");
  RETURN_IF_ERROR(CheckFree(reserve_bytes));
  ASSIGN_OR_RETURN(StateHandle state, Make(layout, slot_cap, reserve_bytes));
  reserved_ += reserve_bytes;
  ++sessions_;
  return state;
}

absl::StatusOr<StateHandle> StatePool::Make(const model::StateLayout& layout, int32_t slot_cap,
                                            size_t reserve_bytes) {
  StateHandle state;
  state.layout = &layout;
  state.slot_cap = slot_cap;
  state.reserved_bytes = reserve_bytes;
  state.base = memory_.Reserve(layout.virtual_bytes());
  if (state.base == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("state memory: the system has no address range of ", layout.virtual_bytes(),
                     " bytes", SystemReason(memory_)));
  }
  if (absl::Status status = Commit(state, 0, {}); !status.ok()) {
    memory_.Release(state.base, layout.virtual_bytes());
    return status;
  }
  for (const model::StateLayout::Image& image : layout.images()) {
    memory_.CopyIn(state.base + image.offset, image.bytes->data(), image.bytes->size());
  }
  return state;
}

absl::Status StatePool::Commit(StateHandle& state, int64_t position) {
  Check(position >= state.position, "a state never shrinks");
  // Sizes never fall as the position rises, so equal sizes mean equal extents.
  if (state.layout->bytes_at(position, state.slot_cap) == state.committed_bytes) return {};
  return Commit(state, position, state.layout->extents_at(state.position, state.slot_cap));
}

void StatePool::Grow(StateHandle& state, int64_t position) {
  Check(Commit(state, position).ok(), "a state grows into memory that is there");
  state.position = position;
}

absl::Status StatePool::Commit(StateHandle& state, int64_t position,
                               std::span<const kernels::StateExtent> committed) {
  size_t total = 0;
  for (const kernels::StateExtent& extent : state.layout->extents_at(position, state.slot_cap)) {
    size_t have = 0;
    for (const kernels::StateExtent& old : committed) {
      if (old.offset == extent.offset) have = old.bytes;
    }
    total += extent.bytes;
    if (memory_.Commit(state.base, extent.offset + have, extent.bytes - have)) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat("state memory: the ", memory_.on_host() ? "system" : "GPU", " does not give ",
                     extent.bytes - have, " bytes of it", SystemReason(memory_)));
  }
  Check(total <= state.reserved_bytes, "a state stays within its reservation");
  committed_ += total - state.committed_bytes;
  state.committed_bytes = total;
  return absl::OkStatus();
}

void StatePool::Release(StateHandle& state) {
  if (state.base == nullptr) return;
  memory_.Release(state.base, state.layout->virtual_bytes());
  reserved_ -= state.reserved_bytes;
  committed_ -= state.committed_bytes;
  --sessions_;
  state = StateHandle{};
}

void StatePool::Vacate(StateHandle& state) {
  const StateHandle before = state;
  Release(state);
  state.layout = before.layout;
  state.slot_cap = before.slot_cap;
  state.position = before.position;
}

void StatePool::ShrinkReservation(StateHandle& state, size_t reserve_bytes) {
  Check(reserve_bytes <= state.reserved_bytes && reserve_bytes >= state.committed_bytes,
        "a reservation shrinks to no less than what is committed");
  reserved_ -= state.reserved_bytes - reserve_bytes;
  state.reserved_bytes = reserve_bytes;
}

absl::Status StatePool::Restart(StateHandle& state) {
  ASSIGN_OR_RETURN(const StateHandle fresh,
                   Make(*state.layout, state.slot_cap, state.reserved_bytes));
  committed_ -= state.committed_bytes;
  memory_.Release(state.base, state.layout->virtual_bytes());
  state = fresh;
  return absl::OkStatus();
}

absl::StatusOr<StateHandle> StatePool::Clone(const StateHandle& state, size_t reserve_bytes) {
  ASSIGN_OR_RETURN(StateHandle clone, Acquire(*state.layout, state.slot_cap, reserve_bytes));
  if (absl::Status status = CopyTo(state, clone); !status.ok()) {
    Release(clone);
    return status;
  }
  return clone;
}

absl::Status StatePool::CopyTo(const StateHandle& state, StateHandle& copy) {
  Check(copy.position == 0, "a copy goes into a fresh state");
  RETURN_IF_ERROR(Commit(copy, state.position));
  Grow(copy, state.position);
  for (const kernels::StateExtent& extent :
       state.layout->live_extents_at(state.position, state.slot_cap)) {
    memory_.Copy(copy.base + extent.offset, state.base + extent.offset, extent.bytes);
  }
  return absl::OkStatus();
}

size_t StatePool::SnapshotBytes(const StateHandle& state) const {
  return state.layout->live_bytes_at(state.position, state.slot_cap);
}

void StatePool::CopyOut(const StateHandle& state, std::span<std::byte> out) {
  Check(out.size() == SnapshotBytes(state), "size of a state's snapshot");
  size_t at = 0;
  for (const kernels::StateExtent& extent :
       state.layout->live_extents_at(state.position, state.slot_cap)) {
    memory_.CopyOut(out.data() + at, state.base + extent.offset, extent.bytes);
    at += extent.bytes;
  }
}

std::vector<std::span<std::byte>> StatePool::Live(const StateHandle& state) const {
  Check(on_host(), "the host writes to its own memory");
  std::vector<std::span<std::byte>> live;
  for (const kernels::StateExtent& extent :
       state.layout->live_extents_at(state.position, state.slot_cap)) {
    live.emplace_back(state.base + extent.offset, extent.bytes);
  }
  return live;
}

absl::StatusOr<StateSnapshot> StatePool::Snapshot(const StateHandle& state) {
  const size_t size = SnapshotBytes(state);
  StateSnapshot snapshot{state.position, AllocateSnapshot(size), size};
  if (snapshot.bytes == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system has no memory for a copy of ", size, " bytes of state"));
  }
  CopyOut(state, snapshot.span());
  return snapshot;
}

absl::Status StatePool::CopyIn(StateHandle& state, int64_t position,
                               std::span<const std::byte> in) {
  Check(state.position == 0, "a snapshot goes into a fresh state");
  RETURN_IF_ERROR(Commit(state, position));
  Grow(state, position);
  Check(in.size() == SnapshotBytes(state), "size of a state's snapshot");
  size_t at = 0;
  for (const kernels::StateExtent& extent :
       state.layout->live_extents_at(position, state.slot_cap)) {
    memory_.CopyIn(state.base + extent.offset, in.data() + at, extent.bytes);
    at += extent.bytes;
  }
  return absl::OkStatus();
}

}  // namespace ovq::engine
