// Sessions that outlive a request: their memory, their end, and what callers see of them.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/disk/session_folder.h"
#include "server/engine/admission.h"
#include "server/engine/checkpoints.h"
#include "server/engine/engine_config.h"
#include "server/engine/inbox.h"
#include "server/engine/request.h"
#include "server/engine/session.h"
#include "server/engine/state_pool.h"

namespace ovq {

struct SessionImage;
struct WakingSession;

// Session::info is what is published of a session: no caller waits for the engine thread to read
// it. The rest of a session belongs to the engine thread, or, while it is not busy, to whoever
// looks at it in Claim.
//
// A tenant that is not given: any. NotFound for an unknown id and, with the same words, for another
// tenant's session.
class SessionStore {
 public:
  using StartRequest = std::function<void(std::shared_ptr<Request>)>;
  // Called when something is done, of which it may also be that it failed.
  using Then = std::function<void(absl::Status)>;

  // What the folder of the options has done comes back through the inbox. start: the engine's, for
  // tokens that a state from there has not read yet.
  SessionStore(const EngineConfig& config, StatePool& pool, Admission& admission,
               RandomSource& random, std::shared_ptr<Inbox> inbox = std::make_shared<Inbox>(),
               StartRequest start = {});
  ~SessionStore();  // no session is busy

  // --- any thread ---
  absl::StatusOr<SessionInfo> Get(const std::string& id,
                                  const std::optional<std::string>& tenant) const;
  // Sessions with ids after page_token.
  absl::StatusOr<SessionPage> List(const std::optional<std::string>& tenant, int page_size,
                                   const std::string& page_token) const;
  // It is not here, but may lie in the folder.
  bool MayBeElsewhere(const std::string& id) const;
  // Makes a session busy, if it is not (FailedPrecondition) and `check` finds nothing against it.
  absl::StatusOr<std::shared_ptr<Session>> Claim(
      const std::string& id, const std::string& tenant,
      const std::function<absl::Status(const Session&)>& check);

  // --- engine thread ---
  // Opens a valid session at once or not at all; `called`: when. One without a prompt is done then.
  // Else the request consumes the prompt, and Opened follows, or Release if it fails.
  std::shared_ptr<Request> Open(SessionOptions options, SteadyTime called, SessionCallback done);
  // Callers see it when `done` is called: once it is on disk, if sessions are.
  void Opened(Request& request, SessionCallback done);
  // Copies of an idle session with what it has consumed and the token that waits: all or none. They
  // find their places now; the bytes follow, so many a turn of the engine, and the session is busy
  // until then.
  void Fork(const ForkOptions& options, SteadyTime called, SessionsCallback done);

  // Takes an idle session back to what it was at an earlier position, or says what that takes. The
  // request reads what is to be read again, if anything; Rewound follows, or Unrewound if it fails.
  // Null: that was refused, or only asked for, and `done` has been told.
  std::shared_ptr<Request> Rewind(RewindOptions options, std::shared_ptr<CancelSignal> cancel,
                                  SteadyTime called, RewindCallback done);
  void Rewound(Request& request, RewindCallback done);
  // As it was before; where the system has no memory for that, as Lose has it.
  void Unrewound(Request& request);

  // What an idle session is; without its state, unless that is wanted.
  absl::StatusOr<SessionImage> Export(const std::string& id, const std::string& tenant,
                                      bool with_state);
  // A session of an image that fits one of the engine's variants; at once or not at all. Its state
  // is taken as it is; the request reads the tokens that it has not read, and Opened follows, or
  // Release if it fails. Null: there are none, or the image was refused.
  std::shared_ptr<Request> Import(SessionImage image, const SessionOptions& options,
                                  SteadyTime called, SessionCallback done);
  // Of something done with a session: since when, and how long the conversation is.
  void Tell(const char* event, SteadyTime since, int64_t position) const;

  // After a step, with `left` tokens of the prompt to come.
  void MayCheckpoint(Session& session, int64_t left);
  void Publish(Request& request);  // what a turn's request has done so far
  // `what` has happened at this position of a busy session, so that its state is of no use: it is
  // shown and deleted, and nothing else. The disk keeps what it has: the session as its last turn
  // left it.
  void SetDamaged(Session& session, int64_t position, std::string_view what);
  // A turn's request has ended: its session is free again when `then` is called, or has gone if it
  // was deleted meanwhile. DataLoss: what the turn has added could not be written to the disk.
  void EndTurn(Request& request, Then then);

  // --- engine thread: sessions whose state lies on disk ---

  // What a SessionFolder had; FailedPrecondition if it does not fit here, and stays there as it is.
  absl::Status Adopt(FoundSession found);
  // Brings a session here that may lie in the folder, from another server if one has it; OK as well
  // if there is none. Errors as SessionFolder::Take has them.
  void Fetch(const std::string& id, const std::optional<std::string>& tenant, Then then);
  // Brings the state of a claimed session back, if it is not in memory. ResourceExhausted;
  // DataLoss, and the session ends.
  void Wake(std::shared_ptr<Session> session, Then then);
  // The same for an idle one of this id, fetched if need be, which is idle again then; OK as well
  // if there is none.
  void WakeIdle(const std::string& id, const std::string& tenant, Then then);
  // Its request has read what was missing, or has failed.
  void Woken(Request& request, absl::Status status);

  // One that is busy keeps its memory until its request sees that it is deleted.
  void Delete(const std::string& id, const std::optional<std::string>& tenant, SteadyTime called,
              Then then);
  absl::StatusOr<std::vector<std::byte>> CopyState(const std::string& id,
                                                   const std::string& tenant);
  void Expire(SteadyTime now);     // those not busy
  SteadyTime next_expiry() const;  // none expires before
  // For Admission: of the client's idle sessions the one that was used least recently ends, or with
  // a SessionFolder its state moves out, which leaves its place in the table taken.
  bool EvictFrom(const std::string& client, bool table);
  // Swaps idle durable states out, least recently used first, until `bytes` are free. False if they
  // are not, or without EngineOptions::overcommit.
  bool EvictIdleStates(size_t bytes);
  void Release(Session& session);  // its memory and its share of the tenant's
  void AddTo(EngineStats& stats) const;

 private:
  using Map = std::map<std::string, std::shared_ptr<Session>>;
  struct Forking;

  // With the mutex held.
  absl::StatusOr<Map::const_iterator> Find(const std::string& id,
                                           const std::optional<std::string>& tenant) const;
  absl::StatusOr<std::shared_ptr<Session>> FindIdle(const std::string& id,
                                                    const std::string& tenant) const;
  // With a state and its share of the tenant's; no caller sees it yet.
  std::shared_ptr<Session> NewSession(const StateHandle& state, std::unique_ptr<QuotaHold> hold,
                                      const std::string& tenant, const std::string& key,
                                      absl::Duration ttl, bool keep_tokens);
  SessionInfo Show(const std::shared_ptr<Session>& session, const char* event, SteadyTime since);
  // Claims the session for the request, unless only what it takes is asked for.
  absl::Status PrepareRewind(const RewindOptions& options, Request& request, RewindResult& result);
  // Calls done when they are on disk, and from then on callers see them. image: of each, or null
  // if what they have to save says all.
  void Establish(std::vector<std::shared_ptr<Session>> made,
                 std::shared_ptr<const SessionImage> image, const char* event, SteadyTime since,
                 SessionsCallback done);
  // What has changed since the last time, if anything, goes to the disk.
  void Save(const std::shared_ptr<Session>& session, int64_t begin, Then then);
  void MaySnapshot(const std::shared_ptr<Session>& session);
  void Snapshot(const std::shared_ptr<Session>& session, Then then);
  void RemoveFiles(const Session& session, Then then);
  JournalHead MakeJournalHead(const Session& session) const;
  SessionMark MakeMark(const Session& session) const;
  JournalEntry MakeJournalEntry(Session& session, int64_t begin) const;  // takes what is unsaved
  void Quarantine(Session& session);  // its files are damaged: it is no session any more
  SessionImage MakeImageHead(const Session& session) const;  // all but the state
  SessionImage MakeImage(const Session& session);
  std::shared_ptr<const SessionImage> MakeSharedImage(const Session& session);
  static SessionsCallback ForSingleSession(SessionCallback done);
  // Back to the engine thread, from another one.
  Then Posted(Then then) const;
  absl::Status TakeOver(absl::StatusOr<FoundSession> found,
                        const std::optional<std::string>& tenant, SteadyTime called);
  void Asked(const std::string& id);  // another server wants it
  void WakeHere(const std::string& id, const std::string& tenant, Then then);
  absl::Status FindPlace(WakingSession& waking);  // memory for its state
  void ReadInPlace(std::shared_ptr<WakingSession> waking);
  void TakeBack(std::shared_ptr<WakingSession> waking);
  // The state of a busy session goes back to its last checkpoint before `consumed`. If the system
  // has no memory for that, the session is free again as it was, or as Lose has it.
  absl::Status GoBack(Session& session, int64_t consumed, bool replays, RewindWork& work);
  // The state of a busy session, which had consumed so many tokens, is gone: it is on disk alone
  // from now on, or no session any more.
  void Lose(Session& session, int64_t consumed);
  void MoveOut(Session& session);
  void Hibernate(const std::shared_ptr<Session>& session);
  // Of the idle ones; null without any.
  std::shared_ptr<Session> FindLeastRecent(const std::function<bool(const Session&)>& which) const;
  void EndOfTurn(Session& session, int64_t generated);
  void Keep(Session& session);  // a checkpoint of it as it is
  // A session that callers do not see yet, and what it has to read.
  absl::StatusOr<std::shared_ptr<Request>> Take(const SessionImage& image,
                                                const SessionOptions& options);
  static std::vector<TurnEnd> Turns(const Session& session);  // with the mutex held
  absl::Status FindPlaces(Forking& fork);
  void CopySome();  // of the forks, and later the rest
  void EndFork(Forking& fork, absl::Status status);
  std::vector<std::shared_ptr<Session>> Copies(Forking& fork);
  void Refresh(Session& session);             // info, from the state
  void MarkUsed(Session& session);            // now
  void Free(Session& session);                // busy no more
  void EndUse(Session& session);              // the same, or gone if it was deleted meanwhile
  void SetBusy(Session& session, bool busy);  // with the mutex held
  void Count(const Session& session, int sign);

  const EngineConfig& config_;
  StatePool& pool_;
  Admission& admission_;
  RandomSource& random_;
  const std::shared_ptr<Inbox> inbox_;
  const StartRequest start_;
  std::deque<std::shared_ptr<Forking>> forks_;  // in their order
  int placed_ = 0;  // sessions that count as hibernated, and whose states are read into the pool

  mutable std::mutex mutex_;  // guards the rest, and Session::info of sessions in by_id_
  Map by_id_;
  // Of by_id_, as published.
  int hibernated_ = 0;                                    // their state is on disk
  int idle_ = 0;                                          // the others, if not busy
  int64_t tokens_ = 0, live_slots_ = 0, log_tokens_ = 0;  // of these and the busy ones
  SteadyTime next_expiry_ = kNever;
  Checkpoints checkpoints_;  // of sessions in by_id_
};

}  // namespace ovq
