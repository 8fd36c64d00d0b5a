#include "server/engine/sessions/session_ownership.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/checkpoints.h"

namespace ovq::engine {
namespace {

// Says why a stored session cannot be one of this server's, and which option decides it; empty if
// it can be.
std::string FindMisfit(const store::FoundSession& found, const EngineModel& model) {
  const store::JournalHead& head = found.head;
  if (!IsSessionId(head.id)) return "that is no id of a session";
  const ModelVariant* const variant = model.FindVariant(head.cache_policy);
  if (variant == nullptr) {
    return absl::StrCat("of the memory '", absl::CHexEscape(head.cache_policy),
                        "', which this server does not have (--memory)");
  }
  if (variant->fingerprint != head.fingerprint) return "of another model";
  if (variant->layout->fingerprint() != head.layout) {
    return "of states that are laid out otherwise (--state-dtype)";
  }
  const model::StateLimits& limits = variant->layout->limits();
  if (head.slot_cap > limits.max_slot_cap) {
    return absl::StrCat("of ", head.slot_cap, " max_centroids, of which this server takes at most ",
                        limits.max_slot_cap, " (--max-centroids)");
  }
  const int64_t consumed = found.mark.length - (found.mark.pending ? 1 : 0);
  if (!variant->layout->has_unbounded() || consumed <= limits.max_unbounded_tokens) return "";
  return absl::StrCat("of ", consumed, " tokens, of which this server takes at most ",
                      limits.max_unbounded_tokens, " (--max-context)");
}

}  // namespace

SessionOwnership::SessionOwnership(SessionCore& core, SessionRemoval& removal)
    : core_(core), removal_(removal) {
  if (core.config.options.session_store == nullptr) return;
  core.config.options.session_store->SetListener(
      {.asked =
           [this, inbox = core.inbox](const std::string& id) {
             inbox->Post([this, id] { AnswerTransferRequest(id); });
           },
       .lost = [this, inbox = core.inbox](
                   const std::string& id) { inbox->Post([this, id] { Lose(id); }); },
       .found =
           [this, inbox = core.inbox](store::FoundSession found) {
             inbox->Post([this, found = std::move(found)]() mutable {
               const SteadyTime now = core_.config.options.clock.steady();
               (void)RegisterAcquired(std::move(found), std::nullopt, now);
             });
           }});
}

SessionOwnership::~SessionOwnership() {
  if (core_.config.options.session_store != nullptr) {
    core_.config.options.session_store->SetListener({});
  }
}

absl::Status SessionOwnership::Register(store::FoundSession found) {
  const store::JournalHead& head = found.head;
  if (const std::string misfit = FindMisfit(found, core_.config.model); !misfit.empty()) {
    core_.config.options.session_store->Release(head.id);
    return absl::FailedPreconditionError(absl::StrCat("session ", head.id, ": ", misfit));
  }
  const ModelVariant* const variant = core_.config.model.FindVariant(head.cache_policy);
  Lose(head.id);  // the store acquires only what it does not own, so that one in memory is lost
  auto session = std::make_shared<Session>();
  session->state.layout = variant->layout;
  session->state.slot_cap = head.slot_cap;
  session->state.position = found.mark.length - (found.mark.pending ? 1 : 0);
  session->pending = found.mark.pending;
  session->turn_ends = std::move(found.mark.turn_ends);
  session->disk = SessionOnDisk{.version = found.version,
                                .length = found.mark.length,
                                .bytes_since = found.journal_bytes,
                                .used = absl::FromUnixMillis(found.mark.used_unix_ms)};
  session->hold =
      core_.config.options.quotas->Hold(head.tenant, 1, variant->layout->bytes_cap(head.slot_cap));
  SessionInfo& info = session->info;
  if (head.ttl_ms) session->ttl = absl::Milliseconds(*head.ttl_ms);
  info.id = head.id;
  info.tenant = head.tenant;
  info.cache_policy = head.cache_policy;
  info.slot_cap = head.slot_cap;
  info.keeps_tokens = head.keeps_tokens;
  info.created = absl::FromUnixMillis(head.created_unix_ms);
  info.state_bytes_cap = variant->layout->bytes_cap(head.slot_cap);
  info.prompt_tokens_total = found.mark.prompt_tokens;
  info.generated_tokens_total = found.mark.generated_tokens;
  info.last_used = absl::FromUnixMillis(found.mark.used_unix_ms);
  info.expires = info.last_used + session->ttl;
  const Clock& clock = core_.config.options.clock;
  session->expires = After(clock.steady(), info.expires - clock.wall());
  core_.table.Insert(session, /*used=*/false);
  core_.table.texts().AddFound(info, found.text_bytes);
  core_.admission.CountStored(1);
  // The store may have told that it is lost before it was here.
  if (found.still_owned == nullptr || found.still_owned()) return absl::OkStatus();
  Lose(head.id);
  return absl::UnavailableError(
      absl::StrCat("session ", head.id, ": another server has acquired it meanwhile"));
}

bool SessionOwnership::MayBeElsewhere(const std::string& id) const {
  const store::SessionStore* const store = core_.config.options.session_store.get();
  return store != nullptr && IsSessionId(id) &&
         (!core_.table.Contains(id) || !store->sure_of_ownership());
}

void SessionOwnership::Acquire(const std::string& id, const std::optional<std::string>& tenant,
                               StatusCallback then) {
  if (!MayBeElsewhere(id)) return then(absl::OkStatus());
  if (!core_.table.Contains(id)) return AskStore(id, tenant, std::move(then));
  core_.config.options.session_store->ConfirmOwnership(
      [this, inbox = core_.inbox, id, tenant, then = std::move(then)](const absl::Status&) mutable {
        inbox->Post([this, id, tenant, then = std::move(then)]() mutable {
          // While the store cannot be asked, a session that is here goes on in memory.
          if (core_.table.Contains(id)) return then(absl::OkStatus());
          AskStore(id, tenant, std::move(then));
        });
      });
}

void SessionOwnership::AskStore(const std::string& id, const std::optional<std::string>& tenant,
                                StatusCallback then) {
  if (const auto asking = asking_.find(id); asking != asking_.end()) {
    asking->second.push_back(
        [this, id, tenant, then = std::move(then)](absl::Status status) mutable {
          status.ok() ? Acquire(id, tenant, std::move(then)) : then(std::move(status));
        });
    return;
  }
  asking_[id] = {};
  const SteadyTime called = core_.config.options.clock.steady();
  core_.config.options.session_store->Acquire(
      id, [this, inbox = core_.inbox, id, tenant, called,
           then = std::move(then)](absl::StatusOr<store::FoundSession> found) mutable {
        inbox->Post(
            [this, id, found = std::move(found), tenant, called, then = std::move(then)]() mutable {
              const absl::Status status = RegisterAcquired(std::move(found), tenant, called);
              const std::vector<StatusCallback> others = std::move(asking_.extract(id).mapped());
              if (status.ok() && core_.table.Contains(id)) {
                Acquire(id, tenant, std::move(then));  // the lease may have ended meanwhile
              } else {
                then(status);
              }
              for (const StatusCallback& other : others) other(status);
            });
      });
}

absl::Status SessionOwnership::RegisterAcquired(absl::StatusOr<store::FoundSession> found,
                                                const std::optional<std::string>& tenant,
                                                SteadyTime called) {
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  if (!found.ok()) return found.status();
  if (tenant && found->head.tenant != *tenant) {
    core_.config.options.session_store->Release(found->head.id);
    return absl::OkStatus();  // for this caller there is none
  }
  const int64_t position = found->mark.length;
  absl::Status status = Register(*std::move(found));
  if (status.ok()) {
    core_.table.ReportEvent("take_over", position, called);
  }
  removal_.Expire(core_.config.options.clock.steady());  // its time may be over
  return status;
}

void SessionOwnership::Lose(const std::string& id) {
  const absl::StatusOr<std::shared_ptr<Session>> found = core_.table.Find(id, std::nullopt);
  if (found.ok()) core_.disk.Lose(**found);
}

void SessionOwnership::StoreIdle(const std::shared_ptr<Session>& session) {
  if (!core_.table.Claim(session->info.id, session->info.tenant).ok()) return;
  core_.disk.Save(session, session->disk->length, [this, session](const absl::Status&) {
    core_.table.EndClaim(*session, /*used=*/false);
  });
}

void SessionOwnership::AnswerTransferRequest(const std::string& id) {
  store::SessionStore& store = *core_.config.options.session_store;
  const absl::StatusOr<std::shared_ptr<Session>> found = core_.table.Find(id, std::nullopt);
  if (!found.ok()) return;
  const std::shared_ptr<Session>& session = *found;
  std::unique_lock lock = core_.table.Lock();
  // Until they ask again.
  if (session->disk->snapshotting || session->disk->texts_pending > 0) return;
  if (session->info.busy || session->info.damaged_at) return store.Decline(id);
  const bool unstored = session->disk->behind || SessionPersistence::UseIsUnsaved(*session);
  const bool far_on = session->resident() &&
                      session->state.position - session->disk->snapshot_at >= 2 * kCheckpointTokens;
  lock.unlock();
  if (unstored) return StoreIdle(session);
  // Reading so many tokens again would take the other server longer than this.
  if (far_on) return core_.disk.Snapshot(session, [](const absl::Status&) {});
  // A turn may have claimed it meanwhile.
  if (!core_.table.Claim(id, session->info.tenant).ok()) return store.Decline(id);
  core_.table.Remove(*session);
  const int64_t position = session->position();
  core_.table.Release(*session);
  core_.table.ReportEvent("let_go", position);  // before another server can have it
  store.Release(id);
}

}  // namespace ovq::engine
