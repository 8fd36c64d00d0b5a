#include "server/engine/sessions/session_persistence.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/huge_pages.h"

namespace ovq::engine {
namespace {

absl::Status NotOnDisk(const Session& session, const absl::Status& status) {
  const std::string& id = session.info.id;
  if (absl::IsAborted(status) || absl::IsUnknown(status)) {
    return LostSession(id, absl::IsUnknown(status));
  }
  return absl::DataLossError(
      absl::StrCat("session ", id, ": could not be written to disk, so that a restart would find ",
                   session.disk->length, " of its ", session.position(),
                   " tokens; it goes on in memory: ", std::string(status.message())));
}

// The error of a session that could not be created: callers do not see it.
absl::Status NotCreated(const std::string& id, const absl::Status& status) {
  if (absl::IsAborted(status) || absl::IsUnknown(status)) {
    return LostSession(id, absl::IsUnknown(status));
  }
  return absl::DataLossError(
      absl::StrCat("session ", id, ": could not be written to disk, so that there is no such ",
                   "session: ", std::string(status.message())));
}

store::SessionStore::MakeSnapshot MakeSnapshotFile(std::shared_ptr<const SessionImage> image,
                                                   std::shared_ptr<const FleetKeys> keys) {
  return [image = std::move(image),
          keys = std::move(keys)](const store::SessionStore::WriteParts& write) {
    const EncodedSession file = EncodeAroundState(*image, keys.get());
    return write({file.head, image->state, file.tail});
  };
}

// A large state has a token of snapshot spacing per this many bytes: a snapshot's checksums and
// write take four times as long as a checkpoint's copy, and should take as small a share of the
// time.
constexpr size_t kSnapshotBytesPerToken = kCheckpointBytesPerToken / 4;

// Tokens since the last snapshot from which on the end of a turn writes another.
int64_t SnapshotSpacing(const Session& session) {
  return std::max(kCheckpointTokens,
                  static_cast<int64_t>(session.state.committed_bytes / kSnapshotBytesPerToken));
}

// A journal entry's bytes beside its tokens and its unfinished answer, about.
constexpr size_t kJournalEntryBytes = 64;
constexpr size_t kLeastJournalBytes = 1 << 20;

// Whether the store's time of the last use would end the session too early after a use at `used`.
bool IsUnsaved(const Session& session, absl::Time used) {
  const absl::Duration unsaved = used - session.disk->used;
  return session.resident() && unsaved > std::min(absl::Minutes(1), session.ttl / 10);
}

// Bytes of journal entries from which on the end of a turn writes a snapshot, in whose journal they
// are not. Turns that are taken back, and forms of unfinished answers, add bytes without tokens.
size_t MostJournalBytes(const Session& session) {
  return std::max(kLeastJournalBytes, session.state.committed_bytes);
}

}  // namespace

StatusCallback SessionPersistence::OnEngineThread(StatusCallback then) const {
  return [inbox = inbox_, then = std::move(then)](absl::Status status) mutable {
    inbox->Post([then = std::move(then), status = std::move(status)]() mutable {
      then(std::move(status));
    });
  };
}

store::JournalHead SessionPersistence::MakeJournalHead(const Session& session) const {
  const ModelVariant& variant = *config_.model.FindVariant(session.info.cache_policy);
  store::JournalHead head{.id = session.info.id,
                          .tenant = session.info.tenant,
                          .cache_policy = variant.name,
                          .fingerprint = variant.fingerprint,
                          .layout = variant.layout->fingerprint(),
                          .slot_cap = session.state.slot_cap,
                          .keeps_tokens = session.log.has_value(),
                          .created_unix_ms = absl::ToUnixMillis(session.info.created)};
  if (session.ttl != absl::InfiniteDuration()) head.ttl_ms = absl::ToInt64Milliseconds(session.ttl);
  return head;
}

store::SessionMark SessionPersistence::MakeMark(const Session& session) const {
  return {.length = session.position(),
          .pending = session.pending,
          .turn_ends = session.turn_ends,
          .prompt_tokens = session.info.prompt_tokens_total,
          .generated_tokens = session.info.generated_tokens_total,
          .used_unix_ms = absl::ToUnixMillis(config_.options.clock.wall()),
          .unfinished = session.unfinished ? EncodeUnfinished(*session.unfinished) : ""};
}

store::JournalEntry SessionPersistence::MakeJournalEntry(Session& session, int64_t begin) const {
  const store::SessionMark mark = MakeMark(session);
  store::JournalEntry entry{
      .begin = begin,
      .pending = mark.pending,
      .ends_turn = !mark.turn_ends.empty() && mark.turn_ends.back() == mark.length,
      .prompt_tokens = mark.prompt_tokens,
      .generated_tokens = mark.generated_tokens,
      .used_unix_ms = mark.used_unix_ms,
      .unfinished = mark.unfinished};
  std::vector<int32_t> unsaved = std::exchange(session.disk->unsaved, {});
  if (begin == session.disk->length) entry.tokens = std::move(unsaved);
  return entry;
}

void SessionPersistence::Create(const std::vector<std::shared_ptr<Session>>& sessions,
                                const std::shared_ptr<const SessionImage>& image,
                                StatusCallback then) {
  store::SessionStore* const store = config_.options.session_store.get();
  if (store == nullptr) return then(absl::OkStatus());
  struct Waiting {
    size_t sessions;
    absl::Status status;
  };
  auto waiting = std::make_shared<Waiting>(Waiting{sessions.size(), {}});
  for (const std::shared_ptr<Session>& session : sessions) {
    SessionOnDisk& disk = *session->disk;
    store::JournalHead head = MakeJournalHead(*session);
    head.mark.used_unix_ms = head.created_unix_ms;
    std::vector<store::JournalEntry> entries;
    if (image != nullptr) {
      head.version = 1;
      head.mark = MakeMark(*session);
      disk.snapshot_at = session->state.position;
      disk.unsaved.clear();
    } else if (session->position() > 0) {
      entries.push_back(MakeJournalEntry(*session, 0));
    }
    disk.version = head.version + entries.size();
    disk.length = session->position();
    disk.used = session->info.created;
    store::SessionStore::MakeSnapshot make;
    if (image != nullptr) make = MakeSnapshotFile(image, config_.options.fleet_keys);
    store->Create(std::move(head), std::move(entries), std::move(make),
                  OnEngineThread([waiting, then, session](absl::Status status) {
                    if (waiting->status.ok() && !status.ok()) {
                      waiting->status = NotCreated(session->info.id, status);
                    }
                    if (--waiting->sessions == 0) then(waiting->status);
                  }));
  }
}

bool SessionPersistence::UseIsUnsaved(const Session& session) {
  return IsUnsaved(session, session.info.last_used);
}

void SessionPersistence::Save(const std::shared_ptr<Session>& session, int64_t begin,
                              StatusCallback then) {
  if (session->lost) return then(LostSession(session->info.id));
  if (!session->disk || session->deleted || session->info.damaged_at) {
    return then(absl::OkStatus());
  }
  SessionOnDisk& disk = *session->disk;
  const bool same = begin == disk.length && disk.length == session->position();
  const absl::Time now = config_.options.clock.wall();  // the use that ends with this write
  const bool saved_already = same && !disk.behind && !IsUnsaved(*session, now);
  if (!session->resident() || saved_already) return then(absl::OkStatus());
  disk.used = now;
  const int64_t length = session->position();
  auto saved = [this, session, length, then = std::move(then)](absl::Status status) {
    if (IsLost(*session, status)) return then(NotOnDisk(*session, status));
    SessionOnDisk& disk = *session->disk;
    disk.behind = !status.ok();
    if (status.ok()) disk.length = length;
    then(status.ok() ? status : NotOnDisk(*session, status));
  };
  if (disk.behind) {
    disk.unsaved.clear();
    return Snapshot(session, std::move(saved));
  }
  store::JournalEntry entry = MakeJournalEntry(*session, begin);
  disk.bytes_since +=
      kJournalEntryBytes + entry.tokens.size() * sizeof(int32_t) + entry.unfinished.size();
  config_.options.session_store->Append(
      session->info.id, std::move(entry),
      OnEngineThread([session, saved = std::move(saved)](absl::Status status) {
        session->disk->version += status.ok() ? 1 : 0;
        saved(std::move(status));
      }));
}

void SessionPersistence::SnapshotIfDue(const std::shared_ptr<Session>& session) {
  if (!session->disk || session->deleted || !session->resident()) return;
  SessionOnDisk& disk = *session->disk;
  const int64_t unread = session->state.position - disk.snapshot_at;
  // Below 0 the session was rewound past its snapshot, and a restart would prefill all its tokens.
  if (disk.snapshotting || disk.behind) return;
  const bool near = unread >= 0 && unread < SnapshotSpacing(*session);
  if (near && disk.bytes_since < MostJournalBytes(*session)) return;
  Snapshot(session, [](const absl::Status&) {});  // a failure is harmless: the journal is complete
}

void SessionPersistence::Snapshot(const std::shared_ptr<Session>& session, StatusCallback then) {
  SessionOnDisk& disk = *session->disk;
  store::JournalHead head = MakeJournalHead(*session);
  // The change that could not be written counts as one more than the disk has.
  if (disk.behind) ++disk.version;
  head.version = disk.version;
  head.mark = MakeMark(*session);
  disk.used = config_.options.clock.wall();
  disk.snapshotting = true;
  const int64_t at = session->state.position, before = std::exchange(disk.snapshot_at, at);
  const size_t bytes = std::exchange(disk.bytes_since, 0);
  config_.options.session_store->Snapshot(
      std::move(head), MakeSnapshotFile(MakeImage(*session), config_.options.fleet_keys),
      OnEngineThread(
          [this, session, at, before, bytes, then = std::move(then)](absl::Status status) {
            SessionOnDisk& disk = *session->disk;
            disk.snapshotting = false;
            if (!status.ok() && disk.snapshot_at == at) {
              disk.snapshot_at = before;
              disk.bytes_since += bytes;
            }
            (void)IsLost(*session, status);
            then(std::move(status));
          }));
}

void SessionPersistence::RemoveFiles(const Session& session, StatusCallback then) {
  if (!session.disk) return then(absl::OkStatus());
  const std::string& id = session.info.id;
  config_.options.session_store->Remove(
      id, OnEngineThread([id, then = std::move(then)](const absl::Status& status) {
        if (status.ok()) return then(status);
        if (absl::IsAborted(status) || absl::IsUnknown(status)) {
          return then(LostSession(id, absl::IsUnknown(status)));
        }
        then(absl::DataLossError(
            absl::StrCat("session ", id, ": is gone, but its files may not be, so that a ",
                         "restart may find it: ", std::string(status.message()))));
      }));
}

bool SessionPersistence::IsLost(Session& session, const absl::Status& status) {
  if (!absl::IsAborted(status) && !absl::IsUnknown(status)) return false;
  if (!session.deleted) Lose(session);
  return true;
}

void SessionPersistence::Lose(Session& session) {
  session.lost = true;
  table_.Remove(session);
  const int64_t position = session.position();
  if (!session.info.busy) table_.Release(session);
  table_.ReportEvent("lost", position);
}

void SessionPersistence::Quarantine(Session& session) {
  table_.Remove(session);
  config_.options.session_store->Quarantine(session.info.id);
}

void SessionPersistence::SwapOut(const std::shared_ptr<Session>& session) {
  // Writing the state as it is lets the session be swapped in without a prefill.
  SessionOnDisk& disk = *session->disk;
  const bool stored = disk.snapshot_at == session->state.position && !UseIsUnsaved(*session);
  if (!disk.snapshotting && !stored) {
    Snapshot(session, [](const absl::Status&) {});
  }
  const int64_t position = session->position();
  DropState(*session);
  table_.ReportEvent("hibernate", position);
}

void SessionPersistence::DropState(Session& session) {
  table_.Update(session, [&] {
    pool_.Vacate(session.state);
    session.log.reset();
    session.unfinished.reset();
  });
  {
    const auto lock = table_.Lock();
    table_.checkpoints().Forget(session);
  }
  admission_.CountStored(1);
}

void SessionPersistence::DropLostState(Session& session, int64_t consumed) {
  session.state.position = consumed;
  session.pending.reset();
  if (consumed < std::ssize(*session.log)) session.pending = session.log->back();
  if (session.disk && !session.disk->behind) {
    DropState(session);
    return table_.EndClaim(session);
  }
  table_.Remove(session);
  RemoveFiles(session, [](const absl::Status&) {});
  table_.Release(session);
}

SessionImage SessionPersistence::MakeImageHead(const Session& session) const {
  const ModelVariant& variant = *config_.model.FindVariant(session.info.cache_policy);
  SessionImage image;
  image.model_fingerprint = variant.fingerprint;
  image.layout_fingerprint = variant.layout->fingerprint();
  image.cache_policy = variant.name;
  image.slot_cap = session.state.slot_cap;
  image.position = session.state.position;
  image.pending = session.pending;
  image.tokens = session.log;
  image.turn_ends = session.turn_ends;
  image.created_unix_ms = absl::ToUnixMillis(session.info.created);
  return image;
}

SessionImage SessionPersistence::MakeExport(const Session& session, bool whole) {
  SessionImage image = whole ? std::move(*MakeImage(session)) : MakeImageHead(session);
  if (session.unfinished) image.unfinished = EncodeUnfinished(*session.unfinished);
  return image;
}

std::shared_ptr<SessionImage> SessionPersistence::MakeImage(const Session& session) {
  auto image = std::make_shared<SessionImage>(MakeImageHead(session));
  image->state = RoomFor(pool_.SnapshotBytes(session.state));
  image->state.resize(pool_.SnapshotBytes(session.state));
  image->state_bytes = image->state.size();
  pool_.CopyOut(session.state, std::as_writable_bytes(std::span(image->state)));
  return image;
}

}  // namespace ovq::engine
