// What of the SessionStore takes sessions out and in: images of them, which other servers read too.
#include <span>
#include <utility>

#include "server/engine/error_facts.h"
#include "server/engine/session_image.h"
#include "server/engine/session_store.h"

namespace ovq {

absl::StatusOr<SessionImage> SessionStore::Export(const std::string& id, const std::string& tenant,
                                                  SteadyTime called) {
  std::unique_lock lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> found = FindIdle(id, tenant);
  lock.unlock();  // what a turn claims meanwhile begins on this thread, later
  if (!found.ok()) return found.status();
  const Session& session = **found;
  const EngineMemory& memory = *config_.model.FindMemory(session.info.memory);
  SessionImage image;
  image.model_fingerprint = memory.fingerprint;
  image.layout_fingerprint = memory.layout->fingerprint();
  image.memory = memory.name;
  image.slot_cap = session.state.slot_cap;
  image.position = session.state.position;
  image.pending = session.pending;
  image.tokens = session.log;
  image.turn_ends = session.turn_ends;
  image.created_unix_ms = absl::ToUnixMillis(session.info.created);
  image.state.resize(pool_.SnapshotBytes(session.state));
  image.state_bytes = image.state.size();
  pool_.CopyOut(session.state, std::as_writable_bytes(std::span(image.state)));
  Tell("export", called, session.position());
  return image;
}

absl::StatusOr<SessionInfo> SessionStore::Import(const SessionImage& image,
                                                 const SessionOptions& options, SteadyTime called) {
  if (absl::Status status = admission_.Enter(); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<Session>> session = Take(image, options);
  admission_.Leave();
  if (!session.ok()) return session.status();
  return Show(*session, "import", called);
}

absl::StatusOr<std::shared_ptr<Session>> SessionStore::Take(const SessionImage& image,
                                                            const SessionOptions& options) {
  const StateLayout& layout = *config_.model.FindMemory(image.memory)->layout;
  absl::StatusOr<StateHandle> state = admission_.AcquireSession(layout, image.slot_cap);
  if (!state.ok()) return state.status();
  Job job;  // what the tenant is charged for
  job.tenant = options.tenant;
  if (absl::Status status = admission_.Charge(job, 1, state->reserved_bytes); !status.ok()) {
    pool_.Release(*state);
    return status;
  }
  pool_.CopyIn(*state, image.position, std::as_bytes(std::span(image.state)));
  std::shared_ptr<Session> session =
      NewSession(*state, std::move(job.hold), options.tenant, options.key,
                 options.ttl.value_or(config_.options.session_ttl), image.tokens.has_value());
  session->pending = image.pending;
  session->log = image.tokens;
  session->turn_ends = image.turn_ends;
  MayCheckpoint(*session, 0);
  return session;
}

}  // namespace ovq
