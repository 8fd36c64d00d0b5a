// What of the SessionStore makes sessions of others: copies of them, and images, which other
// servers read too.
#include <span>
#include <utility>

#include "base/huge_pages.h"
#include "server/engine/error_facts.h"
#include "server/engine/session_image.h"
#include "server/engine/session_store.h"

namespace ovq {

absl::StatusOr<SessionImage> SessionStore::Export(const std::string& id, const std::string& tenant,
                                                  bool with_state) {
  std::unique_lock lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> found = FindIdle(id, tenant);
  lock.unlock();  // what a turn claims meanwhile begins on this thread, later
  if (!found.ok()) return found.status();
  return with_state ? ImageOf(**found) : HeadOfImage(**found);
}

SessionImage SessionStore::HeadOfImage(const Session& session) const {
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
  return image;
}

SessionImage SessionStore::ImageOf(const Session& session) {
  SessionImage image = HeadOfImage(session);
  image.state = RoomFor(pool_.SnapshotBytes(session.state));
  image.state.resize(pool_.SnapshotBytes(session.state));
  image.state_bytes = image.state.size();
  pool_.CopyOut(session.state, std::as_writable_bytes(std::span(image.state)));
  return image;
}

std::shared_ptr<const SessionImage> SessionStore::ShareImage(const Session& session) {
  return std::make_shared<const SessionImage>(ImageOf(session));
}

std::shared_ptr<Job> SessionStore::Import(SessionImage image, const SessionOptions& options,
                                          SteadyTime called, SessionCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) {
    done(std::move(status));
    return nullptr;
  }
  auto ended = [this, done](absl::StatusOr<SessionInfo> info) {
    done(std::move(info));
    admission_.Leave();
  };
  absl::StatusOr<std::shared_ptr<Job>> job = Take(image, options);
  if (!job.ok()) {
    ended(job.status());
    return nullptr;
  }
  if (image.unread == 0) {
    Establish({(*job)->session}, std::make_shared<const SessionImage>(std::move(image)), "import",
              called, OfOne(std::move(ended)));
    return nullptr;
  }
  (*job)->arrival = called;
  (*job)->deadline = options.deadline;
  (*job)->work = OpenWork{.done = std::move(done),
                          .event = "import",
                          .from_state = true,
                          .waits = image.pending.has_value()};
  return *std::move(job);
}

absl::StatusOr<std::shared_ptr<Job>> SessionStore::Take(const SessionImage& image,
                                                        const SessionOptions& options) {
  const StateLayout& layout = *config_.model.FindMemory(image.memory)->layout;
  absl::StatusOr<StateHandle> state =
      admission_.AcquireSession(layout, image.slot_cap, options.client);
  if (!state.ok()) return state.status();
  auto job = std::make_shared<Job>();
  job->tenant = options.tenant;
  job->client = options.client;
  job->prompt_tokens = image.unread;
  if (absl::Status status = admission_.Charge(*job, 1, state->reserved_bytes); !status.ok()) {
    pool_.Release(*state);
    return status;
  }
  if (absl::Status status =
          pool_.CopyIn(*state, image.position, std::as_bytes(std::span(image.state)));
      !status.ok()) {
    pool_.Release(*state);
    return status;
  }
  const std::shared_ptr<Session> session =
      NewSession(*state, std::move(job->hold), options.tenant, options.key,
                 options.ttl.value_or(config_.options.session_ttl), image.tokens.has_value());
  session->client = options.client;
  session->info.prompt_tokens_total = image.unread;
  session->turn_ends = image.turn_ends;
  session->log = image.tokens;
  if (image.unread == 0) {
    session->pending = image.pending;
  } else {
    job->tokens.assign(image.tokens->begin() + image.position, image.tokens->end());
  }
  MayCheckpoint(*session, 0);
  job->session = session;
  job->sequence = session;
  return job;
}

void SessionStore::Fork(const ForkOptions& options, SteadyTime called, SessionsCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) return done(std::move(status));
  auto ended = [this, done = std::move(done)](absl::StatusOr<std::vector<SessionInfo>> infos) {
    done(std::move(infos));
    admission_.Leave();
  };
  std::unique_lock lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> found =
      FindIdle(options.session_id, options.tenant);
  if (!found.ok()) return ended(found.status());
  Session& session = **found;
  SetBusy(session, true);  // so that nobody moves it out to make room for its copies
  lock.unlock();
  absl::StatusOr<std::vector<std::shared_ptr<Session>>> copies = Copies(session, options);
  lock.lock();
  SetBusy(session, false);
  lock.unlock();
  if (!copies.ok()) return ended(copies.status());
  Establish(*std::move(copies), session.disk ? ShareImage(session) : nullptr, "fork", called,
            std::move(ended));
}

absl::StatusOr<std::vector<std::shared_ptr<Session>>> SessionStore::Copies(
    const Session& session, const ForkOptions& options) {
  const size_t each = session.state.layout->bytes_cap(session.state.slot_cap);
  Job job;  // what the tenant is charged for
  job.tenant = options.tenant;
  job.client = options.client;
  if (absl::Status status =
          admission_.Charge(job, options.count, each * static_cast<size_t>(options.count));
      !status.ok()) {
    return status;
  }
  const absl::StatusOr<std::vector<StateHandle>> states =
      admission_.CloneSession(session.state, static_cast<int>(options.count), options.client);
  if (!states.ok()) return states.status();
  std::vector<std::shared_ptr<Session>> copies;
  for (const StateHandle& state : *states) {
    const std::string& id = session.info.id;
    const size_t dot = id.find('.');
    copies.push_back(NewSession(state, job.hold->Split(1, each), options.tenant,
                                dot == std::string::npos ? "" : id.substr(0, dot),
                                options.ttl.value_or(session.ttl), session.log.has_value()));
    Session& copy = *copies.back();
    copy.client = options.client;
    copy.pending = session.pending;
    copy.log = session.log;
    copy.turn_ends = session.turn_ends;
    checkpoints_.Share(session, copy);
  }
  return copies;
}

}  // namespace ovq
