// Swaps session states in from the session store.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "server/engine/sessions/session_core.h"

namespace ovq::engine {

struct SwappingSession;

// Engine thread only; the store's threads read the files.
class SessionSwapIn {
 public:
  explicit SessionSwapIn(SessionCore& core) : core_(core) {}

  // Brings the state of a claimed session into memory, if it is on disk. ResourceExhausted: there
  // is no room. DataLoss: the files are damaged, and the session ends.
  void SwapIn(std::shared_ptr<Session> session, StatusCallback then);
  void AddTo(EngineStats& stats) const;

 private:
  absl::Status AcquirePlace(SwappingSession& swapping);  // memory for the state
  void ReleasePlace(SwappingSession& swapping);
  void ReadIntoPlace(std::shared_ptr<SwappingSession> swapping);
  void FinishReading(std::shared_ptr<SwappingSession> swapping);
  void StartReplay(std::shared_ptr<SwappingSession> swapping);
  // The request has read the tokens that the state lacked, or has failed.
  void EndReplay(Request& request, const SwappingSession& swapping, absl::Status status);

  SessionCore& core_;
  int placed_ = 0;  // sessions published as hibernated whose states are being read into the pool
};

}  // namespace ovq::engine
