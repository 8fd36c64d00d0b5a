// What of the SessionStore brings sessions and their states back from the disk.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/session_image.h"
#include "server/engine/session_store.h"
#include "server/engine/validate.h"

namespace ovq {

// A session on its way back. The folder's threads and the engine's have it in turn.
struct WakingSession {
  const std::shared_ptr<Session> session;
  const ModelVariant& memory;
  const int64_t vocab_size;
  const SteadyTime called;
  const SessionStore::Then then;

  // What was read.
  absl::Status status = {};
  std::optional<SessionFolder::StoredSession> files = {};
  std::unique_ptr<SessionReader> reader = {};  // of the snapshot, if there is one
  SessionMark mark = {};
  int64_t from = 0;                  // what the state has consumed; 0 if it is of no use
  std::string bytes = {};            // the state, if it is not in its place
  std::vector<int32_t> tokens = {};  // of the conversation from position `begin` on
  int64_t begin = 0;

  // Where the state is read to.
  StateHandle place = {};
  std::vector<std::span<std::byte>> live = {};
  std::shared_ptr<Checkpoint> copy = {};

  int64_t consumed() const { return mark.length - (mark.pending ? 1 : 0); }
};

namespace {

constexpr size_t kPartBytes = size_t{256} << 10;  // stays in the processor's cache
// So much the engine thread copies itself, which takes it less than another turn may.
constexpr size_t kCopiedBytes = size_t{2} << 20;

absl::Status ReadPart(WakingSession& waking) {
  SnapshotFile& file = *waking.files->snapshot;
  if (file.left() == 0) return waking.reader->Finish().status();
  const std::span<char> room = waking.reader->Room(std::min(kPartBytes, file.left()));
  absl::Status status = file.Read(room);
  return status.ok() ? waking.reader->AddRoom() : status;
}

// As far as it says where the state belongs.
absl::Status ReadHead(WakingSession& waking) {
  const Journal& journal = waking.files->journal;
  waking.mark = journal.mark();
  if (waking.files->snapshot == nullptr) return absl::OkStatus();
  // Nothing but damage changes these files, and every byte is in a section with a checksum.
  waking.reader = std::make_unique<SessionReader>(
      [&memory = waking.memory, vocab_size = waking.vocab_size](const SessionImage& head) {
        return CheckSessionFits(head, memory.fingerprint, *memory.layout, vocab_size);
      },
      /*digest=*/false);
  while (!waking.reader->has_head()) {
    RETURN_IF_ERROR(ReadPart(waking));
  }
  const SessionImage& head = waking.reader->head();
  if (head.length() != journal.head.mark.length || head.slot_cap != journal.head.slot_cap) {
    return absl::DataLossError("session file: not the one that its journal goes on from");
  }
  const bool goes_on = std::ranges::all_of(
      journal.entries, [&head](const JournalEntry& entry) { return entry.begin >= head.position; });
  if (goes_on && head.position <= waking.consumed()) waking.from = head.position;
  return absl::OkStatus();
}

absl::Status ReadSnapshot(WakingSession& waking) {
  while (waking.files->snapshot->left() > 0) {
    RETURN_IF_ERROR(ReadPart(waking));
  }
  ASSIGN_OR_RETURN(SessionImage image, waking.reader->Finish());
  const StateLayout& layout = *waking.memory.layout;
  const absl::Status status = waking.place.base == nullptr
                                  ? CheckSessionState(image, layout)
                                  : CheckSessionState(image, layout, waking.place.base);
  if (!status.ok()) return status;
  if (waking.copy != nullptr) {
    std::byte* to = waking.copy->bytes.get();
    for (const std::span<std::byte> part : waking.live) to = std::ranges::copy(part, to).out;
  }
  if (waking.from > 0) waking.bytes = std::move(image.state);
  if (image.tokens) {
    waking.tokens = *std::move(image.tokens);
  } else {
    waking.begin = image.position;
    if (image.pending) waking.tokens = {*image.pending};
  }
  return absl::OkStatus();
}

absl::Status ReadAll(WakingSession& waking) {
  if (waking.reader != nullptr) {
    RETURN_IF_ERROR(ReadSnapshot(waking));
  }
  for (const JournalEntry& entry : waking.files->journal.entries) {
    if (entry.begin < waking.begin) break;
    waking.tokens.resize(static_cast<size_t>(entry.begin - waking.begin));
    waking.tokens.insert(waking.tokens.end(), entry.tokens.begin(), entry.tokens.end());
  }
  const auto known = [&waking](int32_t token) { return token >= 0 && token < waking.vocab_size; };
  if (waking.from < waking.begin || !std::ranges::all_of(waking.tokens, known)) {
    return absl::DataLossError("journal: it does not go on from its snapshot");
  }
  return absl::OkStatus();
}

void ReadRest(WakingSession& waking, const SessionFolder& folder) {
  if (waking.status.ok()) waking.status = ReadAll(waking);
  if (waking.files) folder.ReportRead(*waking.files, waking.status);
}

}  // namespace

absl::Status SessionStore::Adopt(FoundSession found) {
  const JournalHead& head = found.head;
  const ModelVariant* const memory = config_.model.FindVariant(head.memory);
  if (!IsSessionId(head.id) || memory == nullptr || memory->fingerprint != head.fingerprint ||
      memory->layout->fingerprint() != head.layout ||
      head.slot_cap > memory->layout->limits().max_slot_cap) {
    config_.options.session_folder->ReleaseOwnership(head.id);
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
  config_.options.session_folder->AcquireOwnership(
      id, [this, inbox = inbox_, tenant, called,
           then = std::move(then)](absl::StatusOr<FoundSession> found) mutable {
        inbox->Post(
            [this, found = std::move(found), tenant, called, then = std::move(then)]() mutable {
              then(TakeOver(std::move(found), tenant, called));
            });
      });
}

absl::Status SessionStore::TakeOver(absl::StatusOr<FoundSession> found,
                                    const std::optional<std::string>& tenant, SteadyTime called) {
  if (absl::IsNotFound(found.status())) return absl::OkStatus();
  if (!found.ok()) return found.status();
  if (tenant && found->head.tenant != *tenant) {
    config_.options.session_folder->ReleaseOwnership(found->head.id);
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
  if (busy || session->disk->behind) return folder.DeclineTransfer(id);
  if (session->disk->snapshotting) return;  // until they ask again
  if (session->resident() &&
      session->state.position - session->disk->snapshot_at >= 2 * kCheckpointTokens) {
    lock.unlock();  // what they would read again takes longer than this
    return Snapshot(session, [](const absl::Status&) {});
  }
  Count(*session, -1);
  by_id_.erase(found);
  lock.unlock();
  const int64_t position = session->position();
  Release(*session);
  folder.ReleaseOwnership(id);
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
  const ModelVariant& memory = *config_.model.FindVariant(session->info.memory);
  SessionFolder* const folder = config_.options.session_folder.get();
  const std::string id = session->info.id;
  auto waking = std::make_shared<WakingSession>(
      WakingSession{std::move(session), memory, config_.model.vocab_size,
                    config_.options.clock.steady(), std::move(then)});
  folder->Read(
      id, [this, folder, inbox = inbox_, on_host = pool_.on_host(),
           waking = std::move(waking)](absl::StatusOr<SessionFolder::StoredSession> files) mutable {
        waking->status = files.status();
        if (files.ok()) {
          waking->files = *std::move(files);
          waking->status = ReadHead(*waking);
        }
        const bool in_place = waking->status.ok() && waking->from > 0 && on_host &&
                              waking->reader->head().state_bytes > kCopiedBytes;
        if (!in_place) ReadRest(*waking, *folder);
        inbox->Post([this, in_place, waking = std::move(waking)]() mutable {
          in_place ? ReadInPlace(std::move(waking)) : TakeBack(std::move(waking));
        });
      });
}

absl::Status SessionStore::FindPlace(WakingSession& waking) {
  const Session& session = *waking.session;
  admission_.CountStored(-1);
  const absl::StatusOr<StateHandle> place =
      admission_.AcquireSession(*session.state.layout, session.state.slot_cap, session.client);
  if (place.ok()) {
    waking.place = *place;
  } else {
    admission_.CountStored(1);
  }
  return place.status();
}

void SessionStore::ReadInPlace(std::shared_ptr<WakingSession> waking) {
  if (waking->session->deleted) return TakeBack(std::move(waking));
  if (absl::Status status = FindPlace(*waking); !status.ok()) {
    return waking->then(std::move(status));
  }
  if (absl::Status status = pool_.Commit(waking->place, waking->from); !status.ok()) {
    pool_.Release(waking->place);
    admission_.CountStored(1);
    return waking->then(std::move(status));
  }
  ++placed_;
  StateHandle& place = waking->place;
  pool_.Grow(place, waking->from);
  waking->live = pool_.Live(place);
  waking->reader->PutStateInto(waking->live);
  if (waking->session->info.keeps_tokens && Checkpoints::Due(place, 0, 0)) {
    waking->copy = checkpoints_.Make(place);
  }
  SessionFolder* const folder = config_.options.session_folder.get();
  folder->Run([this, folder, inbox = inbox_, waking = std::move(waking)]() mutable {
    ReadRest(*waking, *folder);
    inbox->Post([this, waking = std::move(waking)]() mutable {
      --placed_;
      TakeBack(std::move(waking));
    });
  });
}

void SessionStore::TakeBack(std::shared_ptr<WakingSession> waking) {
  const std::shared_ptr<Session>& session = waking->session;
  absl::Status status = waking->status;
  if (session->deleted) {
    status = absl::CancelledError("the session was deleted");
  } else if (!status.ok()) {
    status = absl::Status(
        status.code(),
        absl::StrCat("session ", session->info.id, ": its files: ", std::string(status.message())));
    if (absl::IsDataLoss(status)) Quarantine(*session);
  } else if (waking->place.base == nullptr) {
    status = FindPlace(*waking);
    if (status.ok() && waking->from > 0) {
      status = pool_.CopyIn(waking->place, waking->from, std::as_bytes(std::span(waking->bytes)));
    }
  }
  if (!status.ok()) {
    if (waking->place.base != nullptr) {
      pool_.Release(waking->place);
      admission_.CountStored(1);
    }
    return waking->then(std::move(status));
  }
  auto request = std::make_shared<Request>();
  request->tokens.assign(waking->tokens.begin() + (waking->from - waking->begin),
                         waking->tokens.end());
  request->client = session->client;
  request->session = session;
  request->sequence = session;
  request->prompt_tokens = waking->consumed() - waking->from;
  request->work = WakeWork{waking->mark.pending.has_value(), waking->called, waking->then};
  {
    std::lock_guard lock(mutex_);
    Count(*session, -1);
    session->state = waking->place;
    session->pending.reset();
    if (session->info.keeps_tokens) session->log = std::move(waking->tokens);
    session->disk->snapshot_at = waking->from;
    if (waking->copy != nullptr) checkpoints_.Add(*session, std::move(waking->copy));
    Refresh(*session);
    Count(*session, 1);
  }
  admission_.Reenter();
  start_(std::move(request));
}

void SessionStore::Woken(Request& request, absl::Status status) {
  Session& session = *request.session;
  const WakeWork& work = *request.wake();
  if (status.ok()) {
    MayCheckpoint(session, 0);
    config_.events.session_event(
        {.event = "wake",
         .duration = TimeBetween(work.called, config_.options.clock.steady()),
         .position = session.position(),
         .replayed = request.prompt_tokens});
  } else if (!session.deleted) {
    session.state.position = session.disk->length - (work.waits ? 1 : 0);
    if (work.waits) session.pending = request.tokens.back();
    MoveOut(session);
  }
  work.then(std::move(status));
}

void SessionStore::Quarantine(Session& session) {
  std::unique_lock lock(mutex_);
  Count(session, -1);
  by_id_.erase(session.info.id);
  session.deleted = true;
  lock.unlock();
  config_.options.session_folder->Quarantine(session.info.id);
}

}  // namespace ovq
