#include "server/engine/sessions/session_ownership.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/checkpoints.h"

namespace ovq::engine {

SessionOwnership::SessionOwnership(const EngineConfig& config, Admission& admission,
                                   std::shared_ptr<Inbox> inbox, SessionTable& table,
                                   SessionPersistence& disk, ExpireSessions expire)
    : config_(config),
      admission_(admission),
      inbox_(std::move(inbox)),
      table_(table),
      disk_(disk),
      expire_(std::move(expire)) {
  if (config.options.session_folder == nullptr) return;
  config.options.session_folder->ownership().SetListener(
      [this, inbox = inbox_](const std::string& id) {
        inbox->Post([this, id] { AnswerTransferRequest(id); });
      });
}

SessionOwnership::~SessionOwnership() {
  if (config_.options.session_folder != nullptr) {
    config_.options.session_folder->ownership().SetListener({});
  }
}

absl::Status SessionOwnership::Register(disk::FoundSession found) {
  const disk::JournalHead& head = found.head;
  const ModelVariant* const variant = config_.model.FindVariant(head.cache_policy);
  if (!IsSessionId(head.id) || variant == nullptr || variant->fingerprint != head.fingerprint ||
      variant->layout->fingerprint() != head.layout ||
      head.slot_cap > variant->layout->limits().max_slot_cap) {
    config_.options.session_folder->ownership().Release(head.id);
    return absl::FailedPreconditionError(absl::StrCat(
        "session ", head.id, ": of another model or memory (", head.cache_policy, ")"));
  }
  auto session = std::make_shared<Session>();
  session->state.layout = variant->layout;
  session->state.slot_cap = head.slot_cap;
  session->state.position = found.mark.length - (found.mark.pending ? 1 : 0);
  session->pending = found.mark.pending;
  session->turn_ends = std::move(found.mark.turn_ends);
  session->disk = SessionOnDisk{.version = found.version, .length = found.mark.length};
  session->hold =
      config_.options.quotas->Hold(head.tenant, 1, variant->layout->bytes_cap(head.slot_cap));
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
  const Clock& clock = config_.options.clock;
  session->expires = After(clock.steady(), info.expires - clock.wall());
  table_.Insert(session, /*used=*/false);
  admission_.CountStored(1);
  return absl::OkStatus();
}

bool SessionOwnership::MayBeElsewhere(const std::string& id) const {
  return config_.options.session_folder != nullptr && IsSessionId(id) && !table_.Contains(id);
}

void SessionOwnership::Acquire(const std::string& id, const std::optional<std::string>& tenant,
                               StatusCallback then) {
  if (!MayBeElsewhere(id)) return then(absl::OkStatus());
  const SteadyTime called = config_.options.clock.steady();
  config_.options.session_folder->ownership().Acquire(
      id, [this, inbox = inbox_, tenant, called,
           then = std::move(then)](absl::StatusOr<disk::FoundSession> found) mutable {
        inbox->Post(
            [this, found = std::move(found), tenant, called, then = std::move(then)]() mutable {
              then(RegisterAcquired(std::move(found), tenant, called));
            });
      });
}

absl::Status SessionOwnership::RegisterAcquired(absl::StatusOr<disk::FoundSession> found,
                                                const std::optional<std::string>& tenant,
                                                SteadyTime called) {
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  if (!found.ok()) return found.status();
  if (tenant && found->head.tenant != *tenant) {
    config_.options.session_folder->ownership().Release(found->head.id);
    return absl::OkStatus();  // for this caller there is none
  }
  const int64_t position = found->mark.length;
  absl::Status status = Register(*std::move(found));
  if (status.ok()) {
    config_.events.session_event({.event = "take_over",
                                  .duration = TimeBetween(called, config_.options.clock.steady()),
                                  .position = position});
  }
  expire_(config_.options.clock.steady());
  return status;
}

void SessionOwnership::AnswerTransferRequest(const std::string& id) {
  disk::FolderOwnership& folder = config_.options.session_folder->ownership();
  const absl::StatusOr<std::shared_ptr<Session>> found = table_.Find(id, std::nullopt);
  if (!found.ok()) return;
  const std::shared_ptr<Session>& session = *found;
  std::unique_lock lock = table_.Lock();
  if (session->info.busy || session->disk->behind) return folder.Decline(id);
  if (session->disk->snapshotting) return;  // until they ask again
  if (session->resident() &&
      session->state.position - session->disk->snapshot_at >= 2 * kCheckpointTokens) {
    lock.unlock();  // reading so many tokens again would take the other server longer than this
    return disk_.Snapshot(session, [](const absl::Status&) {});
  }
  lock.unlock();
  // A turn may have claimed it meanwhile.
  if (!table_.Claim(id, session->info.tenant).ok()) return folder.Decline(id);
  table_.Remove(*session);
  const int64_t position = session->position();
  table_.Release(*session);
  folder.Release(id);
  config_.events.session_event(
      {.event = "let_go", .duration = absl::ZeroDuration(), .position = position});
}

}  // namespace ovq::engine
