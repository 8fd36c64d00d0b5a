// What of the SessionStore writes sessions to disk: what callers are told of is there before they
// are told. And lets states go where others need their memory.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/session_image.h"
#include "server/engine/session_store.h"

namespace ovq {
namespace {

absl::Status NotOnDisk(const Session& session, const absl::Status& status) {
  const std::string& id = session.info.id;
  return absl::DataLossError(
      absl::StrCat("session ", id, ": could not be written to disk, so that a restart would find ",
                   session.disk->length, " of its ", session.position(),
                   " tokens; it goes on in memory: ", std::string(status.message())));
}

SessionFolder::MakeFile FileOf(std::shared_ptr<const SessionImage> image) {
  return [image = std::move(image)](const SessionFolder::WriteParts& write) {
    const EncodedSession file = EncodeAroundState(*image);
    return write({file.head, image->state, file.tail});
  };
}

// One token more for so many bytes of a large state: summing and writing it takes four times as
// long as the copy that a checkpoint is, and is to take as small a part of the time.
constexpr size_t kSnapshotBytesPerToken = kCheckpointBytesPerToken / 4;

// A turn after which a crash would leave so much to be read again gets a snapshot.
int64_t SnapshotSpacing(const Session& session) {
  return std::max(kCheckpointTokens,
                  static_cast<int64_t>(session.state.committed_bytes / kSnapshotBytesPerToken));
}

}  // namespace

SessionStore::Then SessionStore::Posted(Then then) const {
  return [inbox = inbox_, then = std::move(then)](absl::Status status) mutable {
    inbox->Post([then = std::move(then), status = std::move(status)]() mutable {
      then(std::move(status));
    });
  };
}

JournalHead SessionStore::MakeJournalHead(const Session& session) const {
  const ModelVariant& memory = *config_.model.FindVariant(session.info.memory);
  JournalHead head{.id = session.info.id,
                   .tenant = session.info.tenant,
                   .memory = memory.name,
                   .fingerprint = memory.fingerprint,
                   .layout = memory.layout->fingerprint(),
                   .slot_cap = session.state.slot_cap,
                   .keeps_tokens = session.log.has_value(),
                   .created_unix_ms = absl::ToUnixMillis(session.info.created)};
  if (session.ttl != absl::InfiniteDuration()) head.ttl_ms = absl::ToInt64Milliseconds(session.ttl);
  return head;
}

SessionMark SessionStore::MakeMark(const Session& session) const {
  return {.length = session.position(),
          .pending = session.pending,
          .turn_ends = session.turn_ends,
          .prompt_tokens = session.info.prompt_tokens_total,
          .generated_tokens = session.info.generated_tokens_total,
          .used_unix_ms = absl::ToUnixMillis(config_.options.clock.wall())};
}

JournalEntry SessionStore::MakeJournalEntry(Session& session, int64_t begin) const {
  const SessionMark mark = MakeMark(session);
  JournalEntry entry{.begin = begin,
                     .pending = mark.pending,
                     .ends_turn = !mark.turn_ends.empty() && mark.turn_ends.back() == mark.length,
                     .prompt_tokens = mark.prompt_tokens,
                     .generated_tokens = mark.generated_tokens,
                     .used_unix_ms = mark.used_unix_ms};
  std::vector<int32_t> unsaved = std::exchange(session.disk->unsaved, {});
  if (begin == session.disk->length) entry.tokens = std::move(unsaved);
  return entry;
}

void SessionStore::Establish(std::vector<std::shared_ptr<Session>> made,
                             std::shared_ptr<const SessionImage> image, const char* event,
                             SteadyTime since, SessionsCallback done) {
  struct All {
    std::vector<std::shared_ptr<Session>> made;
    size_t waiting;
    absl::Status status;
  };
  auto all = std::make_shared<All>(All{std::move(made), 0, {}});
  const auto ready = [this, all, event, since, done = std::move(done)] {
    if (!all->status.ok()) {
      for (const std::shared_ptr<Session>& session : all->made) {
        RemoveFiles(*session, [](const absl::Status&) {});
        Release(*session);
      }
      return done(all->status);
    }
    std::vector<SessionInfo> infos;
    for (const std::shared_ptr<Session>& session : all->made) {
      infos.push_back(Show(session, event, since));
    }
    done(std::move(infos));
    for (const std::shared_ptr<Session>& session : all->made) MaySnapshot(session);
  };
  SessionFolder* const folder = config_.options.session_folder.get();
  if (folder == nullptr) return ready();
  all->waiting = all->made.size();
  for (const std::shared_ptr<Session>& session : all->made) {
    SessionOnDisk& disk = *session->disk;
    JournalHead head = MakeJournalHead(*session);
    head.mark.used_unix_ms = head.created_unix_ms;
    std::vector<JournalEntry> entries;
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
    SessionFolder::MakeFile make;
    if (image != nullptr) make = FileOf(image);
    folder->Create(std::move(head), std::move(entries), std::move(make),
                   Posted([all, ready, &disk, session](absl::Status status) {
                     if (!status.ok()) disk.length = 0;
                     if (all->status.ok() && !status.ok())
                       all->status = NotOnDisk(*session, status);
                     if (--all->waiting == 0) ready();
                   }));
  }
}

void SessionStore::Save(const std::shared_ptr<Session>& session, int64_t begin, Then then) {
  if (!session->disk || session->deleted || session->info.damaged_at) {
    return then(absl::OkStatus());
  }
  SessionOnDisk& disk = *session->disk;
  const bool same = begin == disk.length && disk.length == session->position();
  if (!session->resident() || (same && !disk.behind)) return then(absl::OkStatus());
  const int64_t length = session->position();
  auto saved = [session, length, then = std::move(then)](absl::Status status) {
    SessionOnDisk& disk = *session->disk;
    disk.behind = !status.ok();
    if (status.ok()) disk.length = length;
    then(status.ok() ? status : NotOnDisk(*session, status));
  };
  if (disk.behind) {
    disk.unsaved.clear();
    return Snapshot(session, std::move(saved));
  }
  JournalEntry entry = MakeJournalEntry(*session, begin);
  config_.options.session_folder->Append(
      session->info.id, std::move(entry),
      Posted([session, saved = std::move(saved)](absl::Status status) {
        session->disk->version += status.ok() ? 1 : 0;
        saved(std::move(status));
      }));
}

void SessionStore::MaySnapshot(const std::shared_ptr<Session>& session) {
  if (!session->disk || session->deleted || !session->resident()) return;
  SessionOnDisk& disk = *session->disk;
  const int64_t unread = session->state.position - disk.snapshot_at;
  // One that went back behind its snapshot would have to be read from its first token on.
  if (disk.snapshotting || disk.behind) return;
  if (unread >= 0 && unread < SnapshotSpacing(*session)) return;
  Snapshot(session, [](const absl::Status&) {});  // the journal has all that one would
}

void SessionStore::Snapshot(const std::shared_ptr<Session>& session, Then then) {
  SessionOnDisk& disk = *session->disk;
  JournalHead head = MakeJournalHead(*session);
  // What is behind is one change more than the disk has.
  if (disk.behind) ++disk.version;
  head.version = disk.version;
  head.mark = MakeMark(*session);
  disk.snapshotting = true;
  disk.snapshot_at = session->state.position;
  config_.options.session_folder->Snapshot(
      std::move(head), FileOf(MakeSharedImage(*session)),
      Posted([session, then = std::move(then)](absl::Status status) {
        session->disk->snapshotting = false;
        then(std::move(status));
      }));
}

void SessionStore::RemoveFiles(const Session& session, Then then) {
  if (!session.disk) return then(absl::OkStatus());
  const std::string& id = session.info.id;
  config_.options.session_folder->Remove(
      id, Posted([id, then = std::move(then)](const absl::Status& status) {
        then(status.ok() ? status
                         : absl::DataLossError(absl::StrCat(
                               "session ", id, ": is gone, but its files may not be, so that a ",
                               "restart may find it: ", std::string(status.message()))));
      }));
}

// --- states that go ---

void SessionStore::MoveOut(Session& session) {
  std::unique_lock lock(mutex_);
  Count(session, -1);
  pool_.Vacate(session.state);
  session.log.reset();
  Refresh(session);
  Count(session, 1);
  checkpoints_.Forget(session);
  lock.unlock();
  admission_.CountStored(1);
}

std::shared_ptr<Session> SessionStore::FindLeastRecent(
    const std::function<bool(const Session&)>& which) const {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Session> found;
  for (const auto& [id, session] : by_id_) {
    if (session->info.busy || !which(*session)) continue;
    if (found == nullptr || session->info.last_used < found->info.last_used) found = session;
  }
  return found;
}

void SessionStore::Hibernate(const std::shared_ptr<Session>& session) {
  // Bringing it back shall take no reading: its state as it is goes to the disk on the way.
  SessionOnDisk& disk = *session->disk;
  if (!disk.snapshotting && disk.snapshot_at != session->state.position) {
    Snapshot(session, [](const absl::Status&) {});
  }
  const int64_t position = session->position();
  MoveOut(*session);
  Tell("hibernate", config_.options.clock.steady(), position);
}

bool SessionStore::EvictIdleStates(size_t bytes) {
  if (!config_.options.overcommit) return false;
  const auto may_go = [](const Session& session) {
    return !session.info.hibernated && session.info.durable;
  };
  while (bytes > pool_.free_bytes()) {
    const std::shared_ptr<Session> session = FindLeastRecent(may_go);
    if (session == nullptr) return false;
    Hibernate(session);
  }
  return true;
}

bool SessionStore::EvictFrom(const std::string& client, bool table) {
  const bool on_disk = config_.options.session_folder != nullptr;
  const std::shared_ptr<Session> session = FindLeastRecent([&](const Session& one) {
    if (one.hold == nullptr || one.hold->client() != client) return false;
    // What is on disk is to outlast its server: it is not ended for others.
    return !on_disk || (!table && !one.info.hibernated && one.info.durable);
  });
  if (session == nullptr) return false;
  if (on_disk) {
    Hibernate(session);
    return true;
  }
  std::unique_lock lock(mutex_);
  Count(*session, -1);
  by_id_.erase(session->info.id);
  lock.unlock();
  const int64_t position = session->position();
  session->deleted = true;
  Release(*session);
  Tell("give_way", config_.options.clock.steady(), position);
  return true;
}

}  // namespace ovq
