// What of the SessionStore keeps sessions on disk and brings them back: what callers are told of is
// there before they are told, and a state that is there may leave the memory.
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

std::vector<std::string> PartsOf(const SessionImage& image) {
  EncodedSession file = EncodeSession(image);
  return {std::move(file.head), std::move(file.state), std::move(file.tail)};
}

// A turn after which a restart would have to read so much again gets a snapshot; a large state is
// written less often, as checkpoints are.
int64_t SnapshotSpacing(const Session& session) {
  return std::max(kCheckpointTokens,
                  static_cast<int64_t>(session.state.committed_bytes / kCheckpointBytesPerToken));
}

}  // namespace

// A session as its files have it: a state, and the tokens that it has not read.
struct StoredState {
  SessionImage image;           // the state; at position 0 without bytes
  std::vector<int32_t> tokens;  // of the conversation from position `begin` on
  int64_t begin = 0;
  SessionMark mark;

  int64_t consumed() const { return mark.length - (mark.pending ? 1 : 0); }
};

namespace {

absl::StatusOr<StoredState> Read(SessionFolder::Stored stored, const EngineMemory& memory,
                                 int64_t vocab_size) {
  StoredState state;
  const JournalHead& head = stored.journal.head;
  state.mark = stored.journal.mark();
  if (head.version > 0) {
    SessionReader reader([&](const SessionImage& image) {
      return CheckSessionFits(image, memory.fingerprint, *memory.layout, vocab_size);
    });
    absl::Status status = reader.Add(stored.snapshot);
    if (!status.ok()) return status;
    absl::StatusOr<SessionImage> image = reader.Finish();
    if (!image.ok()) return image.status();
    state.image = *std::move(image);
    if (state.image.length() != head.mark.length || state.image.slot_cap != head.slot_cap) {
      return absl::DataLossError("session file: not the one that its journal goes on from");
    }
  }
  SessionImage& image = state.image;
  if (image.tokens) {
    state.tokens = *std::exchange(image.tokens, std::nullopt);
  } else {
    state.begin = image.position;
    if (image.pending) state.tokens = {*image.pending};
  }
  bool restart = false;
  for (const JournalEntry& entry : stored.journal.entries) {
    restart |= entry.begin < image.position;
    if (entry.begin < state.begin) break;
    state.tokens.resize(static_cast<size_t>(entry.begin - state.begin));
    state.tokens.insert(state.tokens.end(), entry.tokens.begin(), entry.tokens.end());
  }
  if (restart || image.position > state.consumed()) image = {};
  const auto known = [vocab_size](int32_t token) { return token >= 0 && token < vocab_size; };
  if (image.position < state.begin || !std::ranges::all_of(state.tokens, known)) {
    return absl::DataLossError("journal: it does not go on from its snapshot");
  }
  return state;
}

}  // namespace

SessionStore::Then SessionStore::Posted(Then then) const {
  return [inbox = inbox_, then = std::move(then)](absl::Status status) mutable {
    inbox->Post([then = std::move(then), status = std::move(status)]() mutable {
      then(std::move(status));
    });
  };
}

JournalHead SessionStore::HeadOf(const Session& session) const {
  const EngineMemory& memory = *config_.model.FindMemory(session.info.memory);
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

SessionMark SessionStore::MarkOf(const Session& session) const {
  return {.length = session.position(),
          .pending = session.pending,
          .turn_ends = session.turn_ends,
          .prompt_tokens = session.info.prompt_tokens_total,
          .generated_tokens = session.info.generated_tokens_total,
          .used_unix_ms = absl::ToUnixMillis(config_.options.clock.wall())};
}

JournalEntry SessionStore::EntryOf(Session& session, int64_t begin) const {
  const SessionMark mark = MarkOf(session);
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
    JournalHead head = HeadOf(*session);
    std::vector<JournalEntry> entries;
    if (image != nullptr) {
      head.version = 1;
      head.mark = MarkOf(*session);
      disk.snapshot_at = session->state.position;
      disk.unsaved.clear();
    } else if (session->position() > 0) {
      entries.push_back(EntryOf(*session, 0));
    }
    disk.version = head.version + entries.size();
    disk.length = session->position();
    SessionFolder::MakeFile make;
    if (image != nullptr) make = [image] { return PartsOf(*image); };
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
  if (!session->disk || session->deleted) return then(absl::OkStatus());
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
  JournalEntry entry = EntryOf(*session, begin);
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
  JournalHead head = HeadOf(*session);
  // What is behind is one change more than the disk has.
  if (disk.behind) ++disk.version;
  head.version = disk.version;
  head.mark = MarkOf(*session);
  disk.snapshotting = true;
  disk.snapshot_at = session->state.position;
  const std::shared_ptr<const SessionImage> image = ShareImage(*session);
  config_.options.session_folder->Snapshot(
      std::move(head), [image] { return PartsOf(*image); },
      Posted([session, then = std::move(then)](absl::Status status) {
        session->disk->snapshotting = false;
        then(std::move(status));
      }));
}

void SessionStore::RemoveFiles(const Session& session, Then then) {
  if (!session.disk) return then(absl::OkStatus());
  config_.options.session_folder->Remove(session.info.id, Posted(std::move(then)));
}

// --- states that come back ---

std::vector<std::string> SessionStore::Adopt(std::vector<FoundSession> found) {
  std::vector<std::string> left;
  const Clock& clock = config_.options.clock;
  for (FoundSession& one : found) {
    const JournalHead& head = one.head;
    const EngineMemory* const memory = config_.model.FindMemory(head.memory);
    if (!IsSessionId(head.id) || memory == nullptr || memory->fingerprint != head.fingerprint ||
        memory->layout->fingerprint() != head.layout ||
        head.slot_cap > memory->layout->limits().max_slot_cap) {
      left.push_back(absl::StrCat(head.id, ": of another model or memory (", head.memory, ")"));
      continue;
    }
    auto session = std::make_shared<Session>();
    session->state.layout = memory->layout;
    session->state.slot_cap = head.slot_cap;
    session->state.position = one.mark.length - (one.mark.pending ? 1 : 0);
    session->pending = one.mark.pending;
    session->turn_ends = std::move(one.mark.turn_ends);
    session->disk = SessionOnDisk{.version = one.version, .length = one.mark.length};
    session->hold =
        config_.options.quotas->Hold(head.tenant, 1, memory->layout->bytes_cap(head.slot_cap));
    SessionInfo& info = session->info;
    if (head.ttl_ms) session->ttl = absl::Milliseconds(*head.ttl_ms);
    info.id = head.id;
    info.tenant = head.tenant;
    info.memory = head.memory;
    info.slot_cap = head.slot_cap;
    info.keeps_tokens = head.keeps_tokens;
    info.created = absl::FromUnixMillis(head.created_unix_ms);
    info.state_bytes_cap = memory->layout->bytes_cap(head.slot_cap);
    info.prompt_tokens_total = one.mark.prompt_tokens;
    info.generated_tokens_total = one.mark.generated_tokens;
    info.last_used = absl::FromUnixMillis(one.mark.used_unix_ms);
    info.expires = info.last_used + session->ttl;
    session->expires = After(clock.steady(), info.expires - clock.wall());
    std::lock_guard lock(mutex_);
    Refresh(*session);
    Count(*session, 1);
    admission_.CountStored(1);
    next_expiry_ = std::min(next_expiry_, session->expires);
    by_id_.emplace(head.id, std::move(session));
  }
  return left;
}

void SessionStore::WakeIdle(const std::string& id, const std::string& tenant, Then then) {
  std::unique_lock lock(mutex_);
  const absl::StatusOr<std::shared_ptr<Session>> found = FindIdle(id, tenant);
  if (!found.ok() || (*found)->resident()) {
    lock.unlock();
    return then(absl::OkStatus());
  }
  SetBusy(**found, true);
  lock.unlock();
  Wake(*found, [this, session = *found, then = std::move(then)](absl::Status status) {
    EndUse(*session);
    then(std::move(status));
  });
}

void SessionStore::Wake(std::shared_ptr<Session> session, Then then) {
  if (session->resident()) return then(absl::OkStatus());
  const EngineMemory& memory = *config_.model.FindMemory(session->info.memory);
  config_.options.session_folder->Read(
      session->info.id,
      [this, inbox = inbox_, session, &memory, vocab_size = config_.model.vocab_size,
       called = config_.options.clock.steady(),
       then = std::move(then)](absl::StatusOr<SessionFolder::Stored> stored) mutable {
        absl::StatusOr<StoredState> state = stored.ok()
                                                ? Read(*std::move(stored), memory, vocab_size)
                                                : absl::StatusOr<StoredState>(stored.status());
        inbox->Post([this, session = std::move(session), state = std::move(state), called,
                     then = std::move(then)]() mutable {
          TakeBack(session, std::move(state), called, std::move(then));
        });
      });
}

void SessionStore::TakeBack(const std::shared_ptr<Session>& session,
                            absl::StatusOr<StoredState> stored, SteadyTime called, Then then) {
  if (session->deleted) return then(absl::CancelledError("the session was deleted"));
  if (!stored.ok()) {
    const absl::Status status(stored.status().code(),
                              absl::StrCat("session ", session->info.id, ": its files: ",
                                           std::string(stored.status().message())));
    if (absl::IsDataLoss(status)) SetAside(*session);
    return then(status);
  }
  admission_.CountStored(-1);
  absl::StatusOr<StateHandle> state =
      admission_.AcquireSession(*session->state.layout, session->state.slot_cap);
  if (!state.ok()) {
    admission_.CountStored(1);
    return then(state.status());
  }
  if (stored->image.position > 0) {
    pool_.CopyIn(*state, stored->image.position, std::as_bytes(std::span(stored->image.state)));
  }
  const int64_t from = stored->image.position;
  auto job = std::make_shared<Job>();
  job->tokens.assign(stored->tokens.begin() + (from - stored->begin), stored->tokens.end());
  job->session = session;
  job->sequence = session;
  job->prompt_tokens = stored->consumed() - from;
  job->work = WakeWork{stored->mark.pending.has_value(), called, std::move(then)};
  {
    std::lock_guard lock(mutex_);
    Count(*session, -1);
    session->state = *state;
    session->pending.reset();
    if (session->info.keeps_tokens) session->log = std::move(stored->tokens);
    session->disk->snapshot_at = from;
    Refresh(*session);
    Count(*session, 1);
  }
  admission_.Reenter();
  start_(std::move(job));
}

void SessionStore::Woken(Job& job, absl::Status status) {
  Session& session = *job.session;
  const WakeWork& work = *job.wake();
  if (status.ok()) {
    MayCheckpoint(session, 0);
    config_.events.session_event(
        {.event = "wake",
         .duration = TimeBetween(work.called, config_.options.clock.steady()),
         .position = session.position(),
         .replayed = job.prompt_tokens});
  } else if (!session.deleted) {
    session.state.position = session.disk->length - (work.waits ? 1 : 0);
    if (work.waits) session.pending = job.tokens.back();
    MoveOut(session);
  }
  work.then(std::move(status));
}

void SessionStore::SetAside(Session& session) {
  std::unique_lock lock(mutex_);
  Count(session, -1);
  by_id_.erase(session.info.id);
  session.deleted = true;
  lock.unlock();
  config_.options.session_folder->SetAside(session.info.id);
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

std::shared_ptr<Session> SessionStore::FindLeastRecent() const {
  std::lock_guard lock(mutex_);
  std::shared_ptr<Session> found;
  for (const auto& [id, session] : by_id_) {
    const SessionInfo& info = session->info;
    if (info.busy || info.hibernated || !info.durable) continue;
    if (found == nullptr || info.last_used < found->info.last_used) found = session;
  }
  return found;
}

bool SessionStore::MakeRoom(size_t bytes) {
  while (bytes > pool_.free_bytes()) {
    const std::shared_ptr<Session> session = FindLeastRecent();
    if (session == nullptr) return false;
    // Bringing it back shall take no reading: its state as it is goes to the disk on the way.
    SessionOnDisk& disk = *session->disk;
    if (!disk.snapshotting && disk.snapshot_at != session->state.position) {
      Snapshot(session, [](const absl::Status&) {});
    }
    const int64_t position = session->position();
    MoveOut(*session);
    Tell("hibernate", config_.options.clock.steady(), position);
  }
  return true;
}

}  // namespace ovq
