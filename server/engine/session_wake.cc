// What of the SessionStore brings sessions and their states back from the disk, and lets states go
// where others need their memory.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/session_image.h"
#include "server/engine/session_store.h"

namespace ovq {

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
    status = CheckSessionState(state.image, *memory.layout);
    if (!status.ok()) return status;
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

absl::Status SessionStore::Adopt(FoundSession found) {
  const JournalHead& head = found.head;
  const EngineMemory* const memory = config_.model.FindMemory(head.memory);
  if (!IsSessionId(head.id) || memory == nullptr || memory->fingerprint != head.fingerprint ||
      memory->layout->fingerprint() != head.layout ||
      head.slot_cap > memory->layout->limits().max_slot_cap) {
    config_.options.session_folder->LetGo(head.id);
    return absl::FailedPreconditionError(
        absl::StrCat("session ", head.id, ": of another model or memory (", head.memory, ")"));
  }
  auto session = std::make_shared<Session>();
  session->state.layout = memory->layout;
  session->state.slot_cap = head.slot_cap;
  session->state.position = found.mark.length - (found.mark.pending ? 1 : 0);
  session->pending = found.mark.pending;
  session->turn_ends = std::move(found.mark.turn_ends);
  session->disk = SessionOnDisk{.version = found.version, .length = found.mark.length};
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
  info.prompt_tokens_total = found.mark.prompt_tokens;
  info.generated_tokens_total = found.mark.generated_tokens;
  info.last_used = absl::FromUnixMillis(found.mark.used_unix_ms);
  info.expires = info.last_used + session->ttl;
  const Clock& clock = config_.options.clock;
  session->expires = After(clock.steady(), info.expires - clock.wall());
  std::lock_guard lock(mutex_);
  Refresh(*session);
  Count(*session, 1);
  admission_.CountStored(1);
  next_expiry_ = std::min(next_expiry_, session->expires);
  by_id_.emplace(head.id, std::move(session));
  return absl::OkStatus();
}

// --- from one server to another ---

bool SessionStore::MayBeElsewhere(const std::string& id) const {
  if (config_.options.session_folder == nullptr || !IsSessionId(id)) return false;
  std::lock_guard lock(mutex_);
  return !by_id_.contains(id);
}

void SessionStore::Fetch(const std::string& id, const std::optional<std::string>& tenant,
                         Then then) {
  if (!MayBeElsewhere(id)) return then(absl::OkStatus());
  const SteadyTime called = config_.options.clock.steady();
  config_.options.session_folder->Take(id, [this, inbox = inbox_, tenant, called,
                                            then = std::move(then)](
                                               absl::StatusOr<FoundSession> found) mutable {
    inbox->Post([this, found = std::move(found), tenant, called, then = std::move(then)]() mutable {
      then(TakeOver(std::move(found), tenant, called));
    });
  });
}

absl::Status SessionStore::TakeOver(absl::StatusOr<FoundSession> found,
                                    const std::optional<std::string>& tenant, SteadyTime called) {
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  if (!found.ok()) return found.status();
  if (tenant && found->head.tenant != *tenant) {
    config_.options.session_folder->LetGo(found->head.id);
    return absl::OkStatus();  // for this caller there is none
  }
  const int64_t position = found->mark.length;
  absl::Status status = Adopt(*std::move(found));
  if (status.ok()) Tell("take_over", called, position);
  Expire(config_.options.clock.steady());
  return status;
}

void SessionStore::Asked(const std::string& id) {
  SessionFolder& folder = *config_.options.session_folder;
  std::unique_lock lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  const std::shared_ptr<Session> session = found->second;
  const bool busy = session->info.busy;
  if (busy || session->disk->behind) return folder.Refuse(id);
  if (session->disk->snapshotting) return;  // until they ask again
  Count(*session, -1);
  by_id_.erase(found);
  lock.unlock();
  const int64_t position = session->position();
  Release(*session);
  folder.LetGo(id);
  Tell("let_go", config_.options.clock.steady(), position);
}

// --- states that come back ---

void SessionStore::WakeIdle(const std::string& id, const std::string& tenant, Then then) {
  Fetch(id, tenant, [this, id, tenant, then = std::move(then)](absl::Status status) mutable {
    if (!status.ok()) return then(std::move(status));
    WakeHere(id, tenant, std::move(then));
  });
}

void SessionStore::WakeHere(const std::string& id, const std::string& tenant, Then then) {
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
      admission_.AcquireSession(*session->state.layout, session->state.slot_cap, session->client);
  if (!state.ok()) {
    admission_.CountStored(1);
    return then(state.status());
  }
  if (stored->image.position > 0) {
    const absl::Status status =
        pool_.CopyIn(*state, stored->image.position, std::as_bytes(std::span(stored->image.state)));
    if (!status.ok()) {
      pool_.Release(*state);
      admission_.CountStored(1);
      return then(status);
    }
  }
  const int64_t from = stored->image.position;
  auto job = std::make_shared<Job>();
  job->tokens.assign(stored->tokens.begin() + (from - stored->begin), stored->tokens.end());
  job->client = session->client;
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

bool SessionStore::MakeRoom(size_t bytes) {
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

bool SessionStore::GiveWay(const std::string& client, bool table) {
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
