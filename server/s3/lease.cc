#include "server/s3/lease.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::s3 {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kServerPrefix[] = "server/";
constexpr absl::Duration kLongestLease = absl::Minutes(10);
constexpr size_t kMostSeenLeases = 4096;

std::string LeaseKey(const std::string& server) { return absl::StrCat(kServerPrefix, server); }

// The length of a lease, by what it holds: "COUNT MS".
absl::Duration LeaseLength(const std::string& value) {
  int64_t ms = 0;
  const size_t space = value.find(' ');
  if (space == std::string::npos || !absl::SimpleAtoi(value.substr(space + 1), &ms) || ms <= 0) {
    return kLongestLease;
  }
  return std::min(absl::Milliseconds(ms), kLongestLease);
}

}  // namespace

absl::Duration BootTime() {
  timespec time = {};
  clock_gettime(CLOCK_BOOTTIME, &time);
  return absl::DurationFromTimespec(time);
}

absl::StatusOr<bool> Lease::Renew(SteadyTime until) {
  const std::string value = absl::StrCat(++renewals_, " ", absl::ToInt64Milliseconds(length_));
  const absl::Duration now = BootTime();
  absl::StatusOr<std::string> etag =
      client_.PutObject(LeaseKey(server_), value,
                        etag_.empty() ? Precondition::Absent() : Precondition::This(etag_), until);
  const bool kept = etag.ok() && now < end_;
  if (absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status())) {
    etag = client_.PutObject(LeaseKey(server_), value, {}, until);
  }
  RETURN_IF_ERROR(etag.status());
  etag_ = *std::move(etag);
  end_ = now + length_;
  return kept;
}

void Lease::End() { RemoveLease(client_, server_); }

void RemoveLease(S3Client& client, const std::string& server) {
  (void)client.Delete(LeaseKey(server), /*until=*/{});
}

absl::StatusOr<bool> SeenLeases::IsAlive(const std::string& server, SteadyTime until) {
  const absl::StatusOr<ObjectBytes> lease = client_.GetObject(LeaseKey(server), until);
  std::lock_guard lock(mutex_);
  if (absl::IsNotFound(lease.status())) {
    seen_.erase(server);
    return false;
  }
  RETURN_IF_ERROR(lease.status());
  const SteadyTime now = SteadyClock::now();
  if (seen_.size() > kMostSeenLeases) seen_.clear();
  Seen& seen = seen_[server];
  if (seen.etag != lease->etag) seen = {lease->etag, now, LeaseLength(lease->bytes)};
  return TimeBetween(seen.since, now) <= seen.length;
}

absl::StatusOr<bool> SeenLeases::AnyEnded(SteadyTime until) {
  ASSIGN_OR_RETURN(const std::vector<ListedObject> leases, client_.ListAll(kServerPrefix, until));
  std::set<std::string> now;
  bool ended = false;
  for (const ListedObject& lease : leases) {
    const std::string server = lease.key.substr(std::string_view(kServerPrefix).size());
    ASSIGN_OR_RETURN(const bool alive, IsAlive(server, until));
    if (alive) {
      now.insert(server);
      continue;
    }
    ended = true;
    (void)client_.Delete(lease.key, until, lease.etag);
  }
  std::lock_guard lock(mutex_);
  ended = ended || std::ranges::any_of(
                       known_, [&](const std::string& server) { return !now.contains(server); });
  known_ = std::move(now);
  return ended;
}

}  // namespace ovq::s3
