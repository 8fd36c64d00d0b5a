#include "server/engine/sessions/session_transfer.h"

#include <span>
#include <utility>

#include "base/status_macros.h"

namespace ovq::engine {

void SessionImporter::Import(SessionImage image, const SessionOptions& options, SteadyTime called,
                             SessionCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) return done(std::move(status));
  auto leave = [this, done = std::move(done)](absl::StatusOr<SessionInfo> info) {
    done(std::move(info));
    admission_.Leave();
  };
  absl::StatusOr<std::shared_ptr<Request>> made = MakeSession(image, options);
  if (!made.ok()) return leave(made.status());
  const std::shared_ptr<Request> request = *std::move(made);
  if (image.unread == 0) {
    return creator_.PublishSessions({request->session},
                                    std::make_shared<const SessionImage>(std::move(image)),
                                    "import", called, SessionCreator::ForSingleSession(leave));
  }
  request->arrival = called;
  request->deadline = options.deadline;
  request->work = OpenWork{.from_state = true, .waits = image.pending.has_value()};
  request->on_end = [this, leave](Request& ended, absl::Status status) {
    const std::shared_ptr<Session> session = ended.session;
    if (!status.ok()) {
      table_.Release(*session);
      return leave(std::move(status));
    }
    turns_.CheckpointIfDue(*session, 0);  // the ends of turns came with the image
    creator_.PublishSessions({session}, session->disk ? disk_.MakeImage(*session) : nullptr,
                             "import", ended.arrival, SessionCreator::ForSingleSession(leave));
  };
  start_(request);
}

absl::StatusOr<std::shared_ptr<Request>> SessionImporter::MakeSession(
    const SessionImage& image, const SessionOptions& options) {
  const model::StateLayout& layout = *config_.model.FindVariant(image.cache_policy)->layout;
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
  const std::shared_ptr<Session> session = creator_.NewSession(
      state, std::move(request->hold), options.tenant, options.key,
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
  turns_.CheckpointIfDue(*session, 0);
  request->session = session;
  request->sequence = session;
  return request;
}

}  // namespace ovq::engine
