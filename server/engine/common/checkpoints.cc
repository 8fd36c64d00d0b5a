#include "server/engine/common/checkpoints.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/huge_pages.h"

namespace ovq {
namespace {

using Kept = std::vector<std::shared_ptr<const Checkpoint>>;

constexpr size_t kMostSpares = 3;  // usually as many go at once, after as many were added

// Drops a checkpoint between two others if these are no further apart than the later of them is
// from the last one: so gaps double with the distance.
void Thin(Kept& kept) {
  const int64_t last = kept.back()->position;
  for (size_t i = kept.size() - 1; i-- > 0;) {
    const int64_t before = i == 0 ? 0 : kept[i - 1]->position, after = kept[i + 1]->position;
    if (after - before <= last - after) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

std::shared_ptr<const Checkpoint> Checkpoints::Copy(const StateHandle& state) {
  const std::shared_ptr<Checkpoint> copy = Make(state);
  if (copy != nullptr) pool_.CopyOut(state, std::span(copy->bytes.get(), copy->size));
  return copy;
}

void Checkpoints::Held::ReuseMemory(Checkpoint& gone) {
  --copies;
  if (gone.size < kLargeBytes) {
    bytes -= gone.size;
  } else {
    spares.push_back({std::move(gone.bytes), gone.size});
    if (spares.size() > kMostSpares) DropSpare();
  }
  while (copies == 0 && !spares.empty()) DropSpare();
}

void Checkpoints::Held::DropSpare() {
  bytes -= spares.front().size;
  spares.erase(spares.begin());
}

// Allocates and counts `size` bytes, reusing spare memory if possible. Null if memory runs out.
Checkpoint::Bytes Checkpoints::RoomFor(size_t size) {
  Checkpoint::Bytes room;
  std::vector<Held::Spare>& spares = held_->spares;
  const bool again = size >= kLargeBytes && !spares.empty();
  if (again) {
    room = std::move(spares.back().bytes);
    held_->bytes -= spares.back().size;
    spares.pop_back();
  }
  std::byte* const before = room.release();
  auto* const bytes = static_cast<std::byte*>(std::realloc(before, size));
  if (bytes == nullptr) {
    std::free(before);
    return nullptr;
  }
  if (size >= kLargeBytes && !again) PreferHugePages(bytes, size);
  held_->bytes += size;
  return Checkpoint::Bytes(bytes);
}

std::shared_ptr<Checkpoint> Checkpoints::Make(const StateHandle& state) {
  const size_t size = pool_.SnapshotBytes(state);
  if (size > budget_) return nullptr;
  Checkpoint::Bytes bytes = RoomFor(size);
  if (bytes == nullptr) return nullptr;
  std::shared_ptr<Checkpoint> copy(new Checkpoint, [held = held_](Checkpoint* gone) {
    held->ReuseMemory(*gone);
    delete gone;
  });
  ++held_->copies;
  copy->position = state.position;
  copy->size = size;
  copy->bytes = std::move(bytes);
  return copy;
}

void Checkpoints::Use(Session& session) {
  by_use_.erase(session.checkpoints.use);
  session.checkpoints.use = ++uses_;
  by_use_.emplace(session.checkpoints.use, &session);
}

void Checkpoints::Add(Session& session, std::shared_ptr<const Checkpoint> checkpoint) {
  session.checkpoints.made_at = checkpoint->position;
  session.checkpoints.kept.push_back(std::move(checkpoint));
  Thin(session.checkpoints.kept);
  Use(session);
  while (bytes() > budget_) {
    const std::vector<Held::Spare>& spares = held_->spares;
    const bool worth_it = held_->copies > 1 && spares.size() == 1 && spares[0].size <= budget_ / 4;
    if (!spares.empty() && !worth_it) {
      held_->DropSpare();
      continue;
    }
    const auto oldest = by_use_.begin();
    Kept& kept = oldest->second->checkpoints.kept;
    kept.erase(kept.begin());
    if (kept.empty()) by_use_.erase(oldest);
  }
}

void Checkpoints::Share(const Session& from, Session& to) {
  to.checkpoints = {.kept = from.checkpoints.kept, .made_at = from.checkpoints.made_at};
  if (!to.checkpoints.kept.empty()) Use(to);
}

void Checkpoints::ForgetAfter(Session& session, int64_t position) {
  CheckpointList& list = session.checkpoints;
  std::erase_if(list.kept, [position](const auto& kept) { return kept->position > position; });
  list.made_at = std::min(list.made_at, std::max<int64_t>(position, 0));
  if (list.kept.empty()) by_use_.erase(list.use);
}

const Checkpoint* Checkpoints::Before(const Session& session, int64_t position) {
  const Kept& kept = session.checkpoints.kept;
  const auto after =
      std::ranges::upper_bound(kept, position, {}, [](const auto& one) { return one->position; });
  return after == kept.begin() ? nullptr : std::prev(after)->get();
}

int64_t Checkpoints::ReplayTokens(const Session& session, int64_t position) {
  const int64_t consumed = ConsumedAt(position);
  const Checkpoint* from = Before(session, consumed);
  return consumed - (from == nullptr ? 0 : from->position);
}

bool Checkpoints::Due(const StateHandle& state, int64_t made_at, int64_t left) {
  const auto spacing = std::max(
      kCheckpointTokens, static_cast<int64_t>(state.committed_bytes / kCheckpointBytesPerToken));
  if (left > 0 && left <= spacing) return false;  // the end is near
  return state.position - made_at >= std::max(spacing, left);
}

}  // namespace ovq
