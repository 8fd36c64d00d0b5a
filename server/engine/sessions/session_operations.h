// The operations on sessions that other threads may call.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/engine/common/session_image.h"
#include "server/engine/sessions/sessions.h"
#include "server/store/session_store.h"

namespace ovq::engine {

// Any thread but the engine's own. Each is posted to the engine thread, on which callbacks run;
// they must not block.
class SessionOperations {
 public:
  explicit SessionOperations(SessionParts& parts)
      : config_(parts.config), inbox_(parts.inbox), parts_(parts) {}

  void Create(SessionOptions options, SessionCallback done);
  // Copies an idle session; the copies are independent of it. FailedPrecondition if a call uses it.
  void Fork(ForkOptions options, SessionsCallback done);
  // Returns an idle session to its exact state at an earlier position, or only reports the cost of
  // that. `cancel` may be null. The session is unchanged if the call is cancelled or fails.
  void Rewind(RewindOptions options, std::shared_ptr<CancelSignal> cancel, RewindCallback done);
  // Returns the image of an idle session; blocks for at most one iteration. With `since` (checked
  // by CheckSessionBase) the image has no state and is for EncodeDelta; FailedPrecondition then if
  // the session keeps no tokens or does not begin with those of `since`.
  absl::StatusOr<SessionImage> Export(const std::string& id, const std::string& tenant,
                                      const std::optional<SessionBase>& since = {});
  // Checks that this server can hold a session with this image: FailedPrecondition for a model
  // variant or slot cap that it does not have, and the errors of CheckSessionFits.
  absl::Status CheckImport(const SessionImage& head) const;
  // Makes a session from an image. A state that a fleet key has signed, or any state with
  // EngineOptions::trust_session_files, is used: the caller's thread checks that it is safe for
  // kernels (CheckSessionState), and only the tokens that it lacks are prefilled. Otherwise nothing
  // proves that the state belongs to the tokens, so these are prefilled again; FailedPrecondition
  // if there are none. Errors of CheckImport, too. `variant`, `slot_cap` and `prompt` come from the
  // image, not from the options.
  void Import(SessionImage image, SessionOptions options, SessionCallback done);
  // Without a tenant, sessions of all tenants are visible (for administrators); otherwise another
  // tenant's session is NotFound. Deleting cancels the session's running request and blocks for at
  // most one iteration; reads return the values of the last iteration boundary at once. Delete and
  // Get take longer for a session in the SessionStore that this server does not own
  // (SessionStore::Acquire, with its errors).
  absl::Status Delete(const std::string& id, const std::optional<std::string>& tenant);
  // Answers at once, on this thread, for a session that is here. Otherwise `done` is called later,
  // on the engine thread; another server may have to release the session first. Never blocks.
  void Get(const std::string& id, const std::string& tenant, SessionCallback done);
  absl::StatusOr<SessionInfo> Get(const std::string& id, const std::string& tenant);  // blocks
  // Keeps a text with the session, which ends with it and, with a SessionStore, is stored before
  // this returns. Blocks for at most one iteration and the write. Beyond 1/16 of
  // EngineOptions::request_memory the texts of the oldest sessions are dropped.
  absl::Status PutText(const std::string& id, const std::string& tenant, std::string text);
  // Never blocks; `reserve` is asked for the text's bytes before it is read. Errors as from Get.
  // Callbacks are called at once, on the engine thread or on the store's.
  void GetText(const std::string& id, const std::string& tenant,
               std::function<absl::Status(size_t bytes)> reserve, SessionTextCallback done);
  absl::StatusOr<SessionText> GetText(const std::string& id, const std::string& tenant,
                                      const std::function<absl::Status(size_t bytes)>& reserve);
  // Registers the sessions found in the SessionStore (EngineOptions::session_store) before the
  // first call. Returns one message for each session that does not fit here.
  std::vector<std::string> Adopt(std::vector<store::FoundSession> found);
  absl::StatusOr<SessionPage> List(const std::optional<std::string>& tenant, int page_size,
                                   const std::string& page_token) const;

  SessionParts& parts() { return parts_; }  // engine thread

 private:
  // Runs `begin` on the engine thread, as work that was accepted and ends when the `done` that it
  // gets is called. `done` gets the status instead if that is an error or no work is accepted.
  template <class T>
  void Begin(absl::Status status, std::function<void(absl::StatusOr<T>)> done,
             std::function<void(SteadyTime called, std::function<void(absl::StatusOr<T>)>)> begin);
  // PutText on the engine thread, for a session that this server owns.
  void PutTextHere(const std::string& id, const std::string& tenant, const SessionText& text,
                   const StatusCallback& then);
  // Compiles the constraint of an image's unfinished answer into the options, on the caller's
  // thread.
  absl::Status ReadUnfinished(const SessionImage& image, SessionOptions& options) const;

  const EngineConfig& config_;
  const std::shared_ptr<Inbox> inbox_;
  SessionParts& parts_;
};

}  // namespace ovq::engine
