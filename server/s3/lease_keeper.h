// Defines LeaseKeeper, which keeps this server's lease, and knows whether its sessions are still
// its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/s3/lease.h"
#include "server/s3/owned_sessions.h"
#include "server/s3/s3_options.h"

namespace ovq::s3 {

// Thread-safe, except Start, Stop and GiveUp, which are called in this order.
class LeaseKeeper {
 public:
  // Stores a session's object once more, after all changes that were asked for before.
  using Touch = std::function<void(const std::string& id, store::SessionStore::Done done)>;

  // listen: called on the keeper's thread all the time, while the lease lasts and all sessions that
  // others acquired are known to be lost.
  LeaseKeeper(S3Client& client, OwnedSessions& sessions, const S3StoreOptions& options,
              store::Report report, Touch touch, std::function<absl::Status()> listen);
  ~LeaseKeeper() { Stop(); }

  absl::Status Start();  // acquires the lease, and begins to renew it
  void Stop();           // ends the thread; the lease lasts on
  void GiveUp() { lease_.End(); }

  bool sure() const;  // SessionStore::sure_of_ownership
  // How often the lease was over when it was renewed. Whoever acquires a session stores it once
  // more if this has changed meanwhile.
  uint64_t lapses() const { return lapses_; }
  void Confirm(store::SessionStore::Done done);

 private:
  // Whether this server's sessions are its own. kTouching: they are being stored again.
  enum class State : uint8_t { kSure, kLost, kTouching };

  void Loop();
  // Renews the lease if it is due, and has the sessions stored again if it was over. confirming:
  // somebody waits for it.
  absl::Status Keep(SteadyTime& next, bool confirming);
  absl::Status Renew(SteadyTime until);
  void TouchAll();
  // Whether all sessions are stored again. Unavailable if one of them could not be.
  absl::StatusOr<bool> Touched();

  OwnedSessions& sessions_;
  const S3StoreOptions options_;
  const store::Report report_;
  const Touch touch_;
  const std::function<absl::Status()> listen_;
  Lease lease_;                 // of Start, then of the thread
  State state_ = State::kLost;  // likewise
  // Nanoseconds of BootTime until which no other server can have acquired a session of this one.
  std::atomic<int64_t> sure_until_ = 0;
  std::atomic<uint64_t> lapses_ = 0;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false, touched_ = false;
  size_t touching_ = 0;              // sessions that are being stored
  absl::Status touch_failure_ = {};  // of one of them
  std::vector<store::SessionStore::Done> confirmations_;

  std::thread thread_;
};

}  // namespace ovq::s3
