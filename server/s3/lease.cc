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

constexpr char kEnded[] = "ended";
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
  // Until the answer, others may have seen it end.
  const bool kept = etag.ok() && BootTime() < end_;
  if (absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status())) {
    etag = client_.PutObject(LeaseKey(server_), value, {}, until);
  }
  RETURN_IF_ERROR(etag.status());
  etag_ = *std::move(etag);
  end_ = now + length_;
  return kept;
}

void Lease::End() { (void)client_.Delete(LeaseKey(server_), /*until=*/{}); }

absl::StatusOr<bool> SeenLeases::IsAlive(const std::string& server, SteadyTime until) {
  const absl::StatusOr<ObjectBytes> lease = client_.GetObject(LeaseKey(server), until);
  std::lock_guard lock(mutex_);
  if (absl::IsNotFound(lease.status()) || (lease.ok() && lease->bytes == kEnded)) {
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
  std::set<std::string> living;
  std::map<std::string, std::string> ended;
  bool any = false;
  for (const ListedObject& lease : leases) {
    const std::string server = lease.key.substr(std::string_view(kServerPrefix).size());
    const auto before = ended_.find(server);
    if (before != ended_.end() && before->second == lease.etag) {
      ended.insert(*before);
      continue;
    }
    ASSIGN_OR_RETURN(const bool alive, IsAlive(server, until));
    if (alive) {
      living.insert(server);
      continue;
    }
    any = true;
    // A server that wakes at this moment and renews it first lives on.
    absl::StatusOr<std::string> etag =
        client_.PutObject(lease.key, kEnded, Precondition::This(lease.etag), until);
    ended[server] = etag.ok() ? *std::move(etag) : lease.etag;
  }
  any = any || std::ranges::any_of(living_, [&](const std::string& server) {
          return !living.contains(server) && !ended.contains(server);
        });
  living_ = std::move(living);
  ended_ = std::move(ended);
  return any;
}

}  // namespace ovq::s3
