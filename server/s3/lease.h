// Leases of servers in an object store: this server's own, and others' as they are seen.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/s3/s3_client.h"

namespace ovq::s3 {

// This server's lease: an object that it renews. One thread at a time.
class Lease {
 public:
  Lease(S3Client& client, std::string server, absl::Duration length)
      : client_(client), server_(std::move(server)), length_(length) {}

  // Stores the lease again. False if it was not there as it was left, or not for as long as it
  // lasts: others may have acquired this server's sessions.
  absl::StatusOr<bool> Renew(SteadyTime until = {});
  void End();
  // The time of BootTime until which nobody can see that it has ended.
  absl::Duration end() const { return end_; }

 private:
  std::string Value(uint64_t renewal) const;  // of the lease after so many renewals
  absl::StatusOr<ObjectBytes> Find(SteadyTime until);

  S3Client& client_;
  const std::string server_;
  const absl::Duration length_;
  uint64_t renewals_ = 0;  // that were sent
  uint64_t answered_ = 0;  // the last one that is known to have been carried out
  std::string etag_ = {};  // of that one; "": there is none
  absl::Duration end_ = absl::ZeroDuration();
};

// The time since the machine's start, also while it slept.
absl::Duration BootTime();

inline constexpr char kServerPrefix[] = "server/";
inline constexpr char kEnded[] = "ended";  // a lease that others have seen end

// Other servers' leases. A lease that is not there or says so has ended, and so has one that was
// not renewed for as long as it lasts, by the clock of whoever sees it: no two clocks are compared.
// Thread-safe.
class SeenLeases {
 public:
  explicit SeenLeases(S3Client& client) : client_(client) {}

  absl::StatusOr<bool> IsAlive(const std::string& server, SteadyTime until);
  // Looks at all leases. Returns whether a server was seen to have ended for the first time; its
  // lease then says so to all. One thread.
  absl::StatusOr<bool> AnyEnded(SteadyTime until);

 private:
  enum class Life : uint8_t { kLives, kSilent, kSaidToHaveEnded };
  struct Seen {
    std::string etag;
    SteadyTime since;
    absl::Duration length = {};
  };

  absl::StatusOr<Life> Look(const std::string& server, SteadyTime until);

  S3Client& client_;
  // At the last call of AnyEnded: servers that lived, and the ETags of leases that had ended.
  std::set<std::string> living_;
  std::map<std::string, std::string> ended_;

  std::mutex mutex_;                  // guards seen_
  std::map<std::string, Seen> seen_;  // by server
};

}  // namespace ovq::s3
