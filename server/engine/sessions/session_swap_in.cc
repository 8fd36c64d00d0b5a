#include "server/engine/sessions/session_swap_in.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/session_image.h"
#include "server/engine/common/validate.h"

namespace ovq::engine {

// A session whose state is being swapped in. The store's threads and the engine thread own it in
// turn.
struct SwappingSession {
  const std::shared_ptr<Session> session;
  const ModelVariant& variant;
  const EngineConfig& config;
  const std::string client;  // the session's
  const SteadyTime called;
  const StatusCallback then;

  // Results of reading.
  absl::Status status = {};
  std::optional<store::StoredSession> files = {};
  std::unique_ptr<SessionReader> reader = {};  // of the snapshot, if there is one
  store::SessionMark mark = {};
  std::optional<UnfinishedAnswer> unfinished = {};
  int64_t from = 0;        // tokens that the state has consumed; 0: there is no usable state
  std::string bytes = {};  // the state, unless it was read into its place
  std::vector<int32_t> tokens = {};  // of the conversation from position `begin` on
  int64_t begin = 0;

  // The memory that the state is read into.
  StateHandle place = {};
  std::vector<std::span<std::byte>> live = {};
  std::shared_ptr<StateSnapshot> copy = {};

  int64_t consumed() const { return mark.length - (mark.pending ? 1 : 0); }
};

namespace {

constexpr size_t kPartBytes = size_t{256} << 10;  // stays in the processor's cache
// The engine thread copies states up to this size itself: that takes less time than an iteration.
constexpr size_t kCopiedBytes = size_t{2} << 20;

absl::Status ReadPart(SwappingSession& swapping) {
  store::SnapshotReader& file = *swapping.files->snapshot;
  if (file.left() == 0) return swapping.reader->Finish().status();
  const std::span<char> room = swapping.reader->Room(std::min(kPartBytes, file.left()));
  absl::Status status = file.Read(room);
  return status.ok() ? swapping.reader->AddRoom() : status;
}

// Reads up to the part of the head that says where the state belongs.
absl::Status ReadHead(SwappingSession& swapping) {
  const store::Journal& journal = swapping.files->journal;
  swapping.mark = journal.mark();
  if (swapping.files->snapshot == nullptr) return absl::OkStatus();
  // Nothing but damage changes these files, and every byte is in a section with a checksum.
  swapping.reader = std::make_unique<SessionReader>(
      [&variant = swapping.variant,
       vocab_size = swapping.config.model.vocab_size](const SessionImage& head) {
        return CheckSessionFits(head, variant.fingerprint, *variant.layout, vocab_size);
      },
      /*digest=*/false);
  while (!swapping.reader->has_head()) {
    RETURN_IF_ERROR(ReadPart(swapping));
  }
  const SessionImage& head = swapping.reader->head();
  if (head.length() != journal.head.mark.length || head.slot_cap != journal.head.slot_cap) {
    return DamagedFile("not the one that its journal goes on from");
  }
  const bool goes_on = std::ranges::all_of(
      journal.entries,
      [&head](const store::JournalEntry& entry) { return entry.begin >= head.position; });
  if (goes_on && head.position <= swapping.consumed()) swapping.from = head.position;
  return absl::OkStatus();
}

absl::Status ReadSnapshot(SwappingSession& swapping) {
  while (swapping.files->snapshot->left() > 0) {
    RETURN_IF_ERROR(ReadPart(swapping));
  }
  ASSIGN_OR_RETURN(SessionImage image, swapping.reader->Finish());
  RETURN_IF_ERROR(CheckSessionState(image, *swapping.variant.layout, swapping.place.base));
  if (swapping.copy != nullptr) {
    std::byte* to = swapping.copy->bytes.get();
    for (const std::span<std::byte> part : swapping.live) to = std::ranges::copy(part, to).out;
  }
  if (swapping.from > 0) swapping.bytes = std::move(image.state);
  if (image.tokens) {
    swapping.tokens = *std::move(image.tokens);
  } else {
    swapping.begin = image.position;
    if (image.pending) swapping.tokens = {*image.pending};
  }
  return absl::OkStatus();
}

absl::Status ReadAll(SwappingSession& swapping) {
  if (swapping.reader != nullptr) {
    RETURN_IF_ERROR(ReadSnapshot(swapping));
  }
  for (const store::JournalEntry& entry : swapping.files->journal.entries) {
    if (entry.begin < swapping.begin) break;
    swapping.tokens.resize(static_cast<size_t>(entry.begin - swapping.begin));
    swapping.tokens.insert(swapping.tokens.end(), entry.tokens.begin(), entry.tokens.end());
  }
  const auto known = [&swapping](int32_t token) {
    return token >= 0 && token < swapping.config.model.vocab_size;
  };
  if (swapping.from < swapping.begin || !std::ranges::all_of(swapping.tokens, known)) {
    return absl::DataLossError("journal: it does not go on from its snapshot");
  }
  if (swapping.mark.unfinished.empty()) return absl::OkStatus();
  const EngineConfig& config = swapping.config;
  ASSIGN_OR_RETURN(swapping.unfinished,
                   DecodeUnfinished(swapping.mark.unfinished, config.model.vocabulary.get(),
                                    config.options.constraint_limits, config.options.request_memory,
                                    swapping.client));
  if (std::ssize(swapping.unfinished->tokens) <= swapping.mark.length) return absl::OkStatus();
  return absl::DataLossError("journal: an answer is longer than its conversation");
}

void ReadRest(SwappingSession& swapping, const store::SessionStore& store) {
  if (swapping.status.ok()) swapping.status = ReadAll(swapping);
  if (swapping.files) store.ReportRead(*swapping.files, swapping.status);
}

}  // namespace

void SessionSwapIn::SwapIn(std::shared_ptr<Session> session, StatusCallback then) {
  if (session->resident()) return then(absl::OkStatus());
  const ModelVariant& variant = *core_.config.model.FindVariant(session->info.cache_policy);
  store::SessionStore* const store = core_.config.options.session_store.get();
  const std::string id = session->info.id;
  auto swapping = std::make_shared<SwappingSession>(
      SwappingSession{session, variant, core_.config, session->client,
                      core_.config.options.clock.steady(), std::move(then)});
  store->Read(
      id, [this, store, inbox = core_.inbox, on_host = core_.pool.on_host(),
           swapping = std::move(swapping)](absl::StatusOr<store::StoredSession> files) mutable {
        swapping->status = files.status();
        if (files.ok()) {
          swapping->files = *std::move(files);
          swapping->status = ReadHead(*swapping);
        }
        const bool in_place = swapping->status.ok() && swapping->from > 0 && on_host &&
                              swapping->reader->head().state_bytes > kCopiedBytes;
        if (!in_place) ReadRest(*swapping, *store);
        inbox->Post([this, in_place, swapping = std::move(swapping)]() mutable {
          in_place ? ReadIntoPlace(std::move(swapping)) : FinishReading(std::move(swapping));
        });
      });
}

absl::Status SessionSwapIn::AcquirePlace(SwappingSession& swapping) {
  const Session& session = *swapping.session;
  core_.admission.CountStored(-1);
  const absl::StatusOr<StateHandle> place = core_.admission.AcquireSession(
      *session.state.layout, session.state.slot_cap, session.client, /*stored=*/true);
  if (place.ok()) {
    swapping.place = *place;
  } else {
    core_.admission.CountStored(1);
  }
  return place.status();
}

void SessionSwapIn::ReleasePlace(SwappingSession& swapping) {
  core_.pool.Release(swapping.place);
  core_.admission.CountStored(1);
}

void SessionSwapIn::ReadIntoPlace(std::shared_ptr<SwappingSession> swapping) {
  if (swapping->session->deleted) return FinishReading(std::move(swapping));
  if (absl::Status status = AcquirePlace(*swapping); !status.ok()) {
    return swapping->then(std::move(status));
  }
  if (absl::Status status = core_.pool.Commit(swapping->place, swapping->from); !status.ok()) {
    ReleasePlace(*swapping);
    return swapping->then(std::move(status));
  }
  ++placed_;
  StateHandle& place = swapping->place;
  core_.pool.Grow(place, swapping->from);
  swapping->live = core_.pool.Live(place);
  swapping->reader->PutStateInto(swapping->live);
  if (swapping->session->info.keeps_tokens && Checkpoints::Due(place, 0, 0)) {
    swapping->copy = core_.table.checkpoints().Make(place);
  }
  store::SessionStore* const store = core_.config.options.session_store.get();
  store->Run([this, store, inbox = core_.inbox, swapping = std::move(swapping)]() mutable {
    ReadRest(*swapping, *store);
    inbox->Post([this, swapping = std::move(swapping)]() mutable {
      --placed_;
      FinishReading(std::move(swapping));
    });
  });
}

void SessionSwapIn::FinishReading(std::shared_ptr<SwappingSession> swapping) {
  const std::shared_ptr<Session>& session = swapping->session;
  absl::Status status = swapping->status;
  if (session->deleted) {
    status = session->lost ? LostSession(session->info.id)
                           : absl::CancelledError("the session was deleted");
  } else if (!status.ok()) {
    status = absl::Status(
        status.code(),
        absl::StrCat("session ", session->info.id, ": its files: ", std::string(status.message())));
    if (absl::IsDataLoss(status)) core_.disk.Quarantine(*session);
  } else if (swapping->mark.length != session->disk->length) {
    // The store has gone back, as a Redis does that loses its last seconds. Whoever asks for the
    // session next finds it as it is there.
    core_.disk.Lose(*session);
    core_.config.options.session_store->Release(session->info.id);
    status = LostSession(session->info.id);
  } else if (swapping->place.base == nullptr) {
    status = AcquirePlace(*swapping);
    if (status.ok() && swapping->from > 0) {
      status = core_.pool.CopyIn(swapping->place, swapping->from,
                                 std::as_bytes(std::span(swapping->bytes)));
    }
  }
  if (!status.ok()) {
    if (swapping->place.base != nullptr) ReleasePlace(*swapping);
    return swapping->then(std::move(status));
  }
  StartReplay(std::move(swapping));
}

void SessionSwapIn::StartReplay(std::shared_ptr<SwappingSession> swapping) {
  const std::shared_ptr<Session>& session = swapping->session;
  auto request = std::make_shared<Request>();
  request->tokens.assign(swapping->tokens.begin() + (swapping->from - swapping->begin),
                         swapping->tokens.end());
  request->client = session->client;
  request->session = session;
  request->sequence = session;
  request->prompt_tokens = swapping->consumed() - swapping->from;
  core_.table.Update(*session, [&] {
    session->state = swapping->place;
    session->pending.reset();
    if (session->info.keeps_tokens) session->log = std::move(swapping->tokens);
    session->unfinished = std::move(swapping->unfinished);
    session->disk->snapshot_at = swapping->from;
    if (swapping->copy != nullptr)
      core_.table.checkpoints().Add(*session, std::move(swapping->copy));
  });
  request->work =
      SessionWork{.kind = SessionWork::kSwapIn, .leaves_last = swapping->mark.pending.has_value()};
  request->on_end = [this, swapping = std::move(swapping)](Request& ended, absl::Status status) {
    EndReplay(ended, *swapping, std::move(status));
    core_.admission.Leave();
  };
  core_.admission.Reenter();
  core_.start(std::move(request));
}

void SessionSwapIn::EndReplay(Request& request, const SwappingSession& swapping,
                              absl::Status status) {
  Session& session = *request.session;
  if (status.ok()) {
    core_.turns.CheckpointIfDue(session, 0);
    core_.table.ReportEvent("wake", session.position(), swapping.called, request.prompt_tokens);
  } else if (!session.deleted) {
    const bool pending = swapping.mark.pending.has_value();
    session.state.position = session.disk->length - (pending ? 1 : 0);
    if (pending) session.pending = request.tokens.back();
    core_.disk.DropState(session);
  }
  swapping.then(std::move(status));
}

void SessionSwapIn::AddTo(EngineStats& stats) const { stats.sessions_hibernated -= placed_; }

}  // namespace ovq::engine
