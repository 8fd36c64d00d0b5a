#include "server/engine/sessions/session_removal.h"

#include <memory>
#include <utility>

namespace ovq::engine {

void SessionRemoval::Delete(const std::string& id, const std::optional<std::string>& tenant,
                            SteadyTime called, StatusCallback then) {
  const absl::StatusOr<std::shared_ptr<Session>> found = core_.table.Find(id, tenant);
  if (!found.ok()) return then(found.status());
  Session& session = **found;
  core_.table.Remove(session);
  const int64_t position = session.position();
  if (!session.info.busy) core_.table.Release(session);
  core_.disk.RemoveFiles(session,
                         [this, called, position, then = std::move(then)](absl::Status status) {
                           core_.table.ReportEvent("close", position, called);
                           then(std::move(status));
                         });
}

void SessionRemoval::Expire(SteadyTime now) {
  for (const std::shared_ptr<Session>& session : core_.table.RemoveExpired(now)) {
    const int64_t position = session->position();
    core_.table.Release(*session);
    core_.disk.RemoveFiles(*session, [](const absl::Status&) {});  // else the next start ends it
    core_.table.ReportEvent("expire", position);
  }
}

bool SessionRemoval::EvictIdleStates(size_t bytes) {
  const auto may_go = [](const Session& session) {
    return !session.info.hibernated && session.info.durable;
  };
  while (bytes > core_.pool.free_bytes()) {
    const std::shared_ptr<Session> session = core_.table.FindLeastRecent(may_go);
    if (session == nullptr) return false;
    core_.disk.SwapOut(session);
  }
  return true;
}

bool SessionRemoval::EvictFrom(const std::string& client, bool table) {
  const bool on_disk = core_.config.options.session_store != nullptr;
  const std::shared_ptr<Session> session = core_.table.FindLeastRecent([&](const Session& one) {
    if (one.hold == nullptr || one.hold->client() != client) return false;
    // Sessions on disk outlast their server: they do not end for others.
    return !on_disk || (!table && !one.info.hibernated && one.info.durable);
  });
  if (session == nullptr) return false;
  if (on_disk) {
    core_.disk.SwapOut(session);
    return true;
  }
  // A turn may have claimed it meanwhile; then there is another one to look for.
  if (!core_.table.Remove(*session, /*only_idle=*/true)) return true;
  const int64_t position = session->position();
  core_.table.Release(*session);
  core_.table.ReportEvent("give_way", position);
  return true;
}

}  // namespace ovq::engine
