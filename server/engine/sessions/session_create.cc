#include "server/engine/sessions/session_create.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ovq::engine {

SessionsCallback SessionCreator::ForSingleSession(SessionCallback done) {
  return [done = std::move(done)](absl::StatusOr<std::vector<SessionInfo>> infos) {
    if (!infos.ok()) return done(infos.status());
    done(std::move(infos->front()));
  };
}

std::shared_ptr<Session> SessionCreator::NewSession(const StateHandle& state,
                                                    std::unique_ptr<QuotaHold> hold,
                                                    const std::string& tenant,
                                                    const std::string& key, absl::Duration ttl,
                                                    bool keep_tokens) {
  auto session = std::make_shared<Session>();
  session->state = state;
  session->hold = std::move(hold);
  session->ttl = ttl;
  if (keep_tokens) session->log.emplace();
  if (config_.options.session_folder != nullptr) session->disk.emplace();
  SessionInfo& info = session->info;
  info.id = random_.NextId();
  if (!key.empty()) info.id = absl::StrCat(key, ".", info.id);
  info.tenant = tenant;
  info.keeps_tokens = keep_tokens;
  info.created = config_.options.clock.wall();
  info.cache_policy =
      std::ranges::find(config_.model.variants, state.layout, &ModelVariant::layout)->name;
  info.slot_cap = state.slot_cap;
  info.state_bytes_cap = state.reserved_bytes;
  return session;
}

void SessionCreator::Create(SessionOptions options, SteadyTime called, SessionCallback done) {
  if (absl::Status status = admission_.Enter(); !status.ok()) {
    return done(std::move(status));
  }
  std::shared_ptr<Request> request = NewRequest(config_.model, options, 0, called);
  absl::StatusOr<StateHandle> state =
      admission_.AcquireSession(*request->variant->layout, request->slot_cap, request->client);
  absl::Status status = state.status();
  if (status.ok()) {
    status = admission_.Charge(*request, 1, state->reserved_bytes);
    if (!status.ok()) pool_.Release(*state);
  }
  if (!status.ok()) {
    admission_.Leave();
    return done(std::move(status));
  }
  request->session =
      NewSession(*state, std::move(request->hold), request->tenant, options.key,
                 options.ttl.value_or(config_.options.session_ttl), options.keep_tokens);
  request->session->client = request->client;
  request->session->info.prompt_tokens_total = request->prompt_tokens;
  request->sequence = request->session;
  request->work = OpenWork{.cancel = std::move(options.cancel)};
  request->on_end = [this, done = std::move(done), event = options.imported ? "import" : "open"](
                        Request& ended, absl::Status status) {
    const std::shared_ptr<Session> session = ended.session;
    if (!status.ok()) {
      table_.Release(*session);
      done(std::move(status));
      return admission_.Leave();
    }
    turns_.RecordTurnEnd(*session, 0);
    PublishSessions({session}, nullptr, event, ended.arrival,
                    ForSingleSession([this, done](absl::StatusOr<SessionInfo> info) {
                      done(std::move(info));
                      admission_.Leave();
                    }));
  };
  if (!request->tokens.empty()) return start_(std::move(request));
  request->on_end(*request, absl::OkStatus());
}

void SessionCreator::PublishSessions(std::vector<std::shared_ptr<Session>> made,
                                     const std::shared_ptr<const SessionImage>& image,
                                     const char* event, SteadyTime since, SessionsCallback done) {
  auto created = [this, made, event, since, done = std::move(done)](absl::Status status) {
    if (!status.ok()) {
      for (const std::shared_ptr<Session>& session : made) {
        disk_.RemoveFiles(*session, [](const absl::Status&) {});
        table_.Release(*session);
      }
      return done(std::move(status));
    }
    std::vector<SessionInfo> infos;
    for (const std::shared_ptr<Session>& session : made) {
      infos.push_back(table_.Insert(session, /*used=*/true));
      turns_.ReportEvent(event, since, infos.back().position);
    }
    done(std::move(infos));
    for (const std::shared_ptr<Session>& session : made) disk_.SnapshotIfDue(session);
  };
  disk_.Create(made, image, std::move(created));
}

}  // namespace ovq::engine
