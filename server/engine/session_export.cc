// What of the SessionStore makes sessions of others: copies of them, and images, which other
// servers read too.
#include <span>
#include <utility>

#include "base/huge_pages.h"
#include "base/status_macros.h"
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
  return with_state ? MakeImage(**found) : MakeImageHead(**found);
}

SessionImage SessionStore::MakeImageHead(const Session& session) const {
  const ModelVariant& memory = *config_.model.FindVariant(session.info.memory);
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

SessionImage SessionStore::MakeImage(const Session& session) {
  SessionImage image = MakeImageHead(session);
  image.state = RoomFor(pool_.SnapshotBytes(session.state));
  image.state.resize(pool_.SnapshotBytes(session.state));
  image.state_bytes = image.state.size();
  pool_.CopyOut(session.state, std::as_writable_bytes(std::span(image.state)));
  return image;
}

std::shared_ptr<const SessionImage> SessionStore::MakeSharedImage(const Session& session) {
  return std::make_shared<const SessionImage>(MakeImage(session));
}

std::shared_ptr<Request> SessionStore::Import(SessionImage image, const SessionOptions& options,
                                              SteadyTime called, SessionCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) {
    done(std::move(status));
    return nullptr;
  }
  auto ended = [this, done](absl::StatusOr<SessionInfo> info) {
    done(std::move(info));
    admission_.Leave();
  };
  absl::StatusOr<std::shared_ptr<Request>> request = Take(image, options);
  if (!request.ok()) {
    ended(request.status());
    return nullptr;
  }
  if (image.unread == 0) {
    Establish({(*request)->session}, std::make_shared<const SessionImage>(std::move(image)),
              "import", called, ForSingleSession(std::move(ended)));
    return nullptr;
  }
  (*request)->arrival = called;
  (*request)->deadline = options.deadline;
  (*request)->work = OpenWork{.done = std::move(done),
                              .event = "import",
                              .from_state = true,
                              .waits = image.pending.has_value()};
  return *std::move(request);
}

absl::StatusOr<std::shared_ptr<Request>> SessionStore::Take(const SessionImage& image,
                                                            const SessionOptions& options) {
  const StateLayout& layout = *config_.model.FindVariant(image.memory)->layout;
  ASSIGN_OR_RETURN(StateHandle state,
                   admission_.AcquireSession(layout, image.slot_cap, options.client));
  auto request = std::make_shared<Request>();
  request->tenant = options.tenant;
  request->client = options.client;
  request->prompt_tokens = image.unread;
  if (absl::Status status = admission_.Charge(*request, 1, state.reserved_bytes); !status.ok()) {
    pool_.Release(state);
    return status;
  }
  if (absl::Status status =
          pool_.CopyIn(state, image.position, std::as_bytes(std::span(image.state)));
      !status.ok()) {
    pool_.Release(state);
    return status;
  }
  const std::shared_ptr<Session> session =
      NewSession(state, std::move(request->hold), options.tenant, options.key,
                 options.ttl.value_or(config_.options.session_ttl), image.tokens.has_value());
  session->client = options.client;
  session->info.prompt_tokens_total = image.unread;
  session->turn_ends = image.turn_ends;
  session->log = image.tokens;
  if (image.unread == 0) {
    session->pending = image.pending;
  } else {
    request->tokens.assign(image.tokens->begin() + image.position, image.tokens->end());
  }
  MayCheckpoint(*session, 0);
  request->session = session;
  request->sequence = session;
  return request;
}

// Its copies have their place and their share of the tenant's, but not all of them the bytes yet.
struct SessionStore::Forking {
  std::shared_ptr<Session> session;  // busy, so that nobody moves it out or goes on with it
  ForkOptions options;
  SteadyTime called;
  SessionsCallback ended;
  std::unique_ptr<QuotaHold> hold;
  std::vector<StateHandle> states;
  size_t copied = 0;  // of the states
};

void SessionStore::Fork(const ForkOptions& options, SteadyTime called, SessionsCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) return done(std::move(status));
  auto fork = std::make_shared<Forking>();
  fork->options = options;
  fork->called = called;
  fork->ended = [this, done = std::move(done)](absl::StatusOr<std::vector<SessionInfo>> infos) {
    done(std::move(infos));
    admission_.Leave();
  };
  std::unique_lock lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> found =
      FindIdle(options.session_id, options.tenant);
  if (found.ok()) SetBusy(**found, true);
  lock.unlock();
  if (!found.ok()) return fork->ended(found.status());
  fork->session = *found;
  if (absl::Status status = FindPlaces(*fork); !status.ok()) {
    return EndFork(*fork, std::move(status));
  }
  forks_.push_back(std::move(fork));
  if (forks_.size() == 1) CopySome();
}

absl::Status SessionStore::FindPlaces(Forking& fork) {
  const StateHandle& state = fork.session->state;
  const auto count = static_cast<int>(fork.options.count);
  const size_t bytes = state.layout->bytes_cap(state.slot_cap) * static_cast<size_t>(count);
  Request request;  // what the tenant is charged for
  request.tenant = fork.options.tenant;
  request.client = fork.options.client;
  RETURN_IF_ERROR(admission_.Charge(request, count, bytes));
  fork.hold = std::move(request.hold);
  ASSIGN_OR_RETURN(fork.states, admission_.AcquireCopies(state, count, fork.options.client));
  return absl::OkStatus();
}

void SessionStore::CopySome() {
  size_t bytes = 0;
  while (!forks_.empty() && bytes < config_.options.copy_bytes_per_iteration) {
    const std::shared_ptr<Forking> fork = forks_.front();
    const StateHandle& state = fork->session->state;
    absl::Status status = pool_.CopyTo(state, fork->states[fork->copied]);
    bytes += pool_.SnapshotBytes(state);
    if (status.ok() && ++fork->copied < fork->states.size()) continue;
    forks_.pop_front();
    EndFork(*fork, std::move(status));
  }
  if (!forks_.empty()) inbox_->Post([this] { CopySome(); });
}

void SessionStore::EndFork(Forking& fork, absl::Status status) {
  std::vector<std::shared_ptr<Session>> copies;
  std::shared_ptr<const SessionImage> image;
  if (status.ok()) {
    copies = Copies(fork);
    if (fork.session->disk) image = MakeSharedImage(*fork.session);
  } else {
    for (StateHandle& state : fork.states) pool_.Release(state);
  }
  EndUse(*fork.session);
  if (!status.ok()) return fork.ended(std::move(status));
  Establish(std::move(copies), std::move(image), "fork", fork.called, std::move(fork.ended));
}

std::vector<std::shared_ptr<Session>> SessionStore::Copies(Forking& fork) {
  const Session& session = *fork.session;
  const std::string& id = session.info.id;
  const size_t dot = id.find('.');
  std::vector<std::shared_ptr<Session>> copies;
  for (const StateHandle& state : fork.states) {
    copies.push_back(NewSession(state, fork.hold->Split(1, state.reserved_bytes),
                                fork.options.tenant,
                                dot == std::string::npos ? "" : id.substr(0, dot),
                                fork.options.ttl.value_or(session.ttl), session.log.has_value()));
    Session& copy = *copies.back();
    copy.client = fork.options.client;
    copy.pending = session.pending;
    copy.log = session.log;
    copy.turn_ends = session.turn_ends;
    checkpoints_.Share(session, copy);
  }
  return copies;
}

}  // namespace ovq
