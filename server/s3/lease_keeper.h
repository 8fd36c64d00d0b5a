// Defines LeaseKeeper, which keeps this server's lease, and knows whether its sessions are still
// its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/s3/lease.h"
#include "server/s3/owned_sessions.h"
#include "server/s3/s3_options.h"

namespace ovq::s3 {

// Thread-safe, except Start, Stop and GiveUp, which are called in this order.
class LeaseKeeper {
 public:
  using Report = std::function<void(const store::StoreReport&)>;

  // listen: called on the keeper's thread all the time, while the lease lasts and all sessions that
  // others acquired are known to be lost.
  LeaseKeeper(S3Client& client, OwnedSessions& sessions, const S3StoreOptions& options,
              Report report, std::function<absl::Status()> listen);
  ~LeaseKeeper() { Stop(); }

  absl::Status Start();  // acquires the lease, and begins to renew it
  void Stop();           // ends the thread; the lease lasts on
  void GiveUp() { lease_.End(); }

  bool sure() const;  // SessionStore::sure_of_ownership
  void Confirm(store::SessionStore::Done done);

 private:
  void Loop();
  // Renews the lease if it is due, and verifies the sessions if it was over.
  absl::Status Keep(SteadyTime& next);
  absl::Status Renew(SteadyTime until);
  absl::Status VerifyOwned();  // finds sessions that were lost while there was no lease

  S3Client& client_;
  OwnedSessions& sessions_;
  const S3StoreOptions options_;
  const Report report_;
  const std::function<absl::Status()> listen_;
  Lease lease_;          // of Start, then of the thread
  bool verify_ = false;  // likewise: the lease was over
  // Nanoseconds of BootTime until which no other server can have acquired a session of this one.
  std::atomic<int64_t> sure_until_ = 0;

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  bool ending_ = false;
  std::vector<store::SessionStore::Done> confirmations_;

  std::thread thread_;
};

}  // namespace ovq::s3
