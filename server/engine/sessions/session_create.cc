#include "server/engine/sessions/session_create.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::engine {

// A fork whose copies have memory and quota, and get their bytes.
struct SessionCreator::Forking {
  std::shared_ptr<PinnedSession> session;
  ForkOptions options;
  SteadyTime called;
  SessionsCallback done;
  Request charged;  // holds the tenant's share for all copies
  std::vector<StateHandle> states;
  size_t copied = 0;  // of the states
};

void SessionCreator::Create(SessionOptions options, SteadyTime called, SessionCallback done,
                            std::shared_ptr<const SessionImage> image) {
  const bool from_image = image != nullptr;
  if (from_image) {
    options.keep_tokens = image->tokens.has_value();
    options.prompt.clear();
    if (image->unread > 0)
      options.prompt.assign(image->tokens->begin() + image->position, image->tokens->end());
  }
  std::shared_ptr<Request> request = NewRequest(core_.config.model, options, 0, called);
  absl::Status status = MakeSession(*request, options, image.get());
  if (!status.ok()) return done(std::move(status));
  request->work = SessionWork{.kind = SessionWork::kOpen,
                              .leaves_last = !from_image || image->pending.has_value()};
  if (from_image && image->unread > 0) image.reset();  // its state will not be the session's
  request->cancel = std::move(options.cancel);
  request->on_end = [this, from_image, image = std::move(image),
                     event = options.imported ? "import" : "open",
                     done = std::move(done)](Request& ended, absl::Status status) {
    const std::shared_ptr<Session> session = ended.session;
    if (!status.ok()) {
      core_.table.Release(*session);
      return done(std::move(status));
    }
    std::shared_ptr<const SessionImage> snapshot = image;
    if (!from_image) {
      core_.turns.RecordTurnEnd(*session, 0);
    } else if (image == nullptr) {
      core_.turns.CheckpointIfDue(*session, 0);  // the ends of turns came with the image
      if (session->disk) snapshot = core_.disk.MakeImage(*session);
    }
    PublishSessions({session}, snapshot, event, ended.arrival,
                    [done](absl::StatusOr<std::vector<SessionInfo>> infos) {
                      if (!infos.ok()) return done(infos.status());
                      done(std::move(infos->front()));
                    });
  };
  if (!request->tokens.empty()) return core_.start(std::move(request));
  request->on_end(*request, absl::OkStatus());
}

absl::Status SessionCreator::MakeSession(Request& request, const SessionOptions& options,
                                         const SessionImage* image) {
  ASSIGN_OR_RETURN(
      StateHandle state,
      core_.admission.AcquireSession(*request.variant->layout, request.slot_cap, request.client));
  if (image != nullptr) request.prompt_tokens = image->unread;
  absl::Status status = core_.admission.Charge(request, 1, state.reserved_bytes);
  if (status.ok() && image != nullptr)
    status = core_.pool.CopyIn(state, image->position, std::as_bytes(std::span(image->state)));
  if (!status.ok()) {
    core_.pool.Release(state);
    return status;
  }
  const std::shared_ptr<Session> session =
      NewSession(state, std::move(request.hold), request, options.key,
                 options.ttl.value_or(core_.config.options.session_ttl), options.keep_tokens);
  session->info.prompt_tokens_total = request.prompt_tokens;
  if (options.unfinished != nullptr) session->unfinished = *options.unfinished;
  if (image != nullptr) {
    session->turn_ends = image->turn_ends;
    session->log = image->tokens;
    if (image->unread == 0) session->pending = image->pending;
    core_.turns.CheckpointIfDue(*session, 0);
  }
  request.session = session;
  request.sequence = session;
  return status;
}

std::shared_ptr<Session> SessionCreator::NewSession(const StateHandle& state,
                                                    std::unique_ptr<QuotaHold> hold,
                                                    const Request& request, const std::string& key,
                                                    absl::Duration ttl, bool keep_tokens) {
  auto session = std::make_shared<Session>();
  session->state = state;
  session->hold = std::move(hold);
  session->client = request.client;
  session->ttl = ttl;
  if (keep_tokens) session->log.emplace();
  if (core_.config.options.session_store != nullptr) session->disk.emplace();
  SessionInfo& info = session->info;
  info.id = core_.random.NextId();
  if (!key.empty()) info.id = absl::StrCat(key, ".", info.id);
  info.tenant = request.tenant;
  info.keeps_tokens = keep_tokens;
  info.created = core_.config.options.clock.wall();
  info.cache_policy = core_.config.model.VariantWith(state.layout).name;
  info.slot_cap = state.slot_cap;
  info.state_bytes_cap = state.reserved_bytes;
  return session;
}

void SessionCreator::PublishSessions(std::vector<std::shared_ptr<Session>> made,
                                     const std::shared_ptr<const SessionImage>& image,
                                     const char* event, SteadyTime since, SessionsCallback done) {
  auto created = [this, made, event, since, done = std::move(done)](absl::Status status) {
    if (!status.ok()) {
      for (const std::shared_ptr<Session>& session : made) {
        core_.disk.RemoveFiles(*session, [](const absl::Status&) {});
        core_.table.Release(*session);
      }
      return done(std::move(status));
    }
    std::vector<SessionInfo> infos;
    for (const std::shared_ptr<Session>& session : made) {
      // A session that was lost and found again before this is the one that counts.
      if (const auto found = core_.table.Find(session->info.id, std::nullopt); found.ok()) {
        infos.push_back(core_.table.Info(**found));
        session->deleted = true;
        core_.table.Release(*session);
        continue;
      }
      infos.push_back(core_.table.Insert(session, /*used=*/true));
      core_.table.ReportEvent(event, infos.back().position, since);
    }
    done(std::move(infos));
    for (const std::shared_ptr<Session>& session : made) core_.disk.SnapshotIfDue(session);
  };
  core_.disk.Create(made, image, std::move(created));
}

void SessionCreator::Fork(std::shared_ptr<PinnedSession> session, const ForkOptions& options,
                          SteadyTime called, SessionsCallback done) {
  auto fork = std::make_shared<Forking>();
  fork->session = std::move(session);
  fork->session->MarkUsed();
  fork->options = options;
  fork->called = called;
  fork->done = std::move(done);
  if (absl::Status status = AcquireStates(*fork); !status.ok()) {
    return EndFork(*fork, std::move(status));
  }
  core_.copies.Add(
      [this, fork = std::move(fork)](size_t& bytes) { return CopyState(*fork, bytes); },
      /*at_once=*/true);
}

absl::Status SessionCreator::AcquireStates(Forking& fork) {
  const StateHandle& state = (*fork.session)->state;
  const auto count = static_cast<int>(fork.options.count);
  const size_t bytes = state.layout->bytes_cap(state.slot_cap) * static_cast<size_t>(count);
  fork.charged.tenant = fork.options.tenant;
  fork.charged.client = fork.options.client;
  RETURN_IF_ERROR(core_.admission.Charge(fork.charged, count, bytes));
  ASSIGN_OR_RETURN(fork.states, core_.admission.AcquireSessions(*state.layout, state.slot_cap,
                                                                count, fork.options.client));
  return absl::OkStatus();
}

bool SessionCreator::CopyState(Forking& fork, size_t& bytes) {
  const StateHandle& state = (*fork.session)->state;
  absl::Status status = core_.copies.CopyFor(
      fork.options.client, [&] { return core_.pool.CopyTo(state, fork.states[fork.copied]); });
  bytes += core_.pool.SnapshotBytes(state);
  if (status.ok() && ++fork.copied < fork.states.size()) return true;
  EndFork(fork, std::move(status));
  return false;
}

void SessionCreator::EndFork(Forking& fork, absl::Status status) {
  if (!status.ok()) {
    for (StateHandle& state : fork.states) core_.pool.Release(state);
    fork.session.reset();
    return fork.done(std::move(status));
  }
  const std::vector<std::shared_ptr<Session>> copies = MakeCopies(fork);
  const std::shared_ptr<Session> session = fork.session->Detach();
  std::shared_ptr<const SessionImage> image;
  if (session->disk) image = core_.disk.MakeImage(*session);
  const auto saved = [this, session, copies, image, called = fork.called,
                      done = std::move(fork.done)](const absl::Status&) {
    core_.table.EndClaim(*session);
    PublishSessions(copies, image, "fork", called, done);
    core_.disk.SnapshotIfDue(session);
  };
  // The fork is a use of the session, by which its time to live begins anew after a restart, too.
  const bool stored = session->disk && !session->disk->behind;
  stored ? core_.disk.Save(session, session->disk->length, saved) : saved(absl::OkStatus());
}

std::vector<std::shared_ptr<Session>> SessionCreator::MakeCopies(Forking& fork) {
  const Session& session = **fork.session;
  const std::string& id = session.info.id;
  const size_t dot = id.find('.');
  std::vector<std::shared_ptr<Session>> copies;
  for (const StateHandle& state : fork.states) {
    copies.push_back(NewSession(state, fork.charged.hold->Split(1, state.reserved_bytes),
                                fork.charged, dot == std::string::npos ? "" : id.substr(0, dot),
                                fork.options.ttl.value_or(session.ttl), session.log.has_value()));
    Session& copy = *copies.back();
    copy.pending = session.pending;
    copy.log = session.log;
    copy.turn_ends = session.turn_ends;
    copy.unfinished = session.unfinished;
    const auto lock = core_.table.Lock();
    core_.table.checkpoints().Share(session, copy);
  }
  return copies;
}

}  // namespace ovq::engine
