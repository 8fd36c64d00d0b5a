#include "server/engine/common/checkpoints.h"

#include <algorithm>
#include <utility>

namespace ovq::engine {
namespace {

constexpr size_t kMostSpares = 3;  // usually as many go at once, after as many were added

// Drops a checkpoint between two others if these are no further apart than the later of them is
// from the last one: so gaps double with the distance.
void Thin(SnapshotStore::List& kept) {
  const int64_t last = kept.back()->position;
  for (size_t i = kept.size() - 1; i-- > 0;) {
    const int64_t before = i == 0 ? 0 : kept[i - 1]->position, after = kept[i + 1]->position;
    if (after - before <= last - after) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

Checkpoints::Checkpoints(size_t budget_bytes, StatePool& pool)
    : SnapshotStore(budget_bytes, pool, kMostSpares) {}

void Checkpoints::Add(Session& session, std::shared_ptr<const StateSnapshot> checkpoint) {
  session.checkpoint_at = checkpoint->position;
  List kept = Find(session.info.id);
  kept.push_back(std::move(checkpoint));
  Thin(kept);
  Put(session.info.id, std::move(kept));
  Use(session.info.id);
  Shrink();
}

void Checkpoints::Share(const Session& from, Session& to) {
  to.checkpoint_at = from.checkpoint_at;
  Put(to.info.id, Find(from.info.id));
}

void Checkpoints::ForgetAfter(Session& session, int64_t position) {
  session.checkpoint_at = std::min(session.checkpoint_at, std::max<int64_t>(position, 0));
  List kept = Find(session.info.id);
  std::erase_if(kept, [position](const auto& one) { return one->position > position; });
  Put(session.info.id, std::move(kept));
}

const StateSnapshot* Checkpoints::Before(const Session& session, int64_t position) const {
  const List& kept = Find(session.info.id);
  const auto after =
      std::ranges::upper_bound(kept, position, {}, [](const auto& one) { return one->position; });
  return after == kept.begin() ? nullptr : std::prev(after)->get();
}

int64_t Checkpoints::ReplayTokens(const Session& session, int64_t position) const {
  const int64_t consumed = ConsumedAt(position);
  const StateSnapshot* from = Before(session, consumed);
  return consumed - (from == nullptr ? 0 : from->position);
}

bool Checkpoints::Due(const StateHandle& state, int64_t made_at, int64_t left) {
  const auto spacing = std::max(
      kCheckpointTokens, static_cast<int64_t>(state.committed_bytes / kCheckpointBytesPerToken));
  if (left > 0 && left <= spacing) return false;  // the end is near
  return state.position - made_at >= std::max(spacing, left);
}

}  // namespace ovq::engine
