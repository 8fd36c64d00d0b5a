#include "server/engine/sessions/session_removal.h"

#include <memory>
#include <utility>

namespace ovq::engine {

void SessionRemoval::Delete(const std::string& id, const std::optional<std::string>& tenant,
                            SteadyTime called, StatusCallback then) {
  const absl::StatusOr<std::shared_ptr<Session>> found = table_.Find(id, tenant);
  if (!found.ok()) return then(found.status());
  Session& session = **found;
  table_.Remove(session);
  const int64_t position = session.position();
  if (!session.info.busy) table_.Release(session);
  disk_.RemoveFiles(session, [this, called, position, then = std::move(then)](absl::Status status) {
    config_.events.session_event({.event = "close",
                                  .duration = TimeBetween(called, config_.options.clock.steady()),
                                  .position = position});
    then(std::move(status));
  });
}

void SessionRemoval::Expire(SteadyTime now) {
  for (const std::shared_ptr<Session>& session : table_.RemoveExpired(now)) {
    const int64_t position = session->position();
    table_.Release(*session);
    disk_.RemoveFiles(*session, [](const absl::Status&) {});  // else the next start ends it
    config_.events.session_event({.event = "expire", .duration = {}, .position = position});
  }
}

bool SessionRemoval::EvictIdleStates(size_t bytes) {
  const auto may_go = [](const Session& session) {
    return !session.info.hibernated && session.info.durable;
  };
  while (bytes > pool_.free_bytes()) {
    const std::shared_ptr<Session> session = table_.FindLeastRecent(may_go);
    if (session == nullptr) return false;
    disk_.SwapOut(session);
  }
  return true;
}

bool SessionRemoval::EvictFrom(const std::string& client, bool table) {
  const bool on_disk = config_.options.session_folder != nullptr;
  const std::shared_ptr<Session> session = table_.FindLeastRecent([&](const Session& one) {
    if (one.hold == nullptr || one.hold->client() != client) return false;
    // Sessions on disk outlast their server: they do not end for others.
    return !on_disk || (!table && !one.info.hibernated && one.info.durable);
  });
  if (session == nullptr) return false;
  if (on_disk) {
    disk_.SwapOut(session);
    return true;
  }
  const int64_t position = session->position();
  table_.Remove(*session);
  table_.Release(*session);
  config_.events.session_event(
      {.event = "give_way", .duration = absl::ZeroDuration(), .position = position});
  return true;
}

}  // namespace ovq::engine
