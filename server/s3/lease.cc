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

// Returns the ETag of the lease that was sent, "" if there is another one.
absl::StatusOr<std::string> Lease::Find(const std::string& sent, SteadyTime until) {
  absl::StatusOr<ObjectBytes> lease = client_.GetObject(LeaseKey(server_), until);
  if (absl::IsNotFound(lease.status())) return "";
  RETURN_IF_ERROR(lease.status());
  return lease->bytes == sent ? lease->etag : "";
}

absl::StatusOr<bool> Lease::Renew(SteadyTime until) {
  const std::string value = absl::StrCat(++renewals_, " ", absl::ToInt64Milliseconds(length_));
  const absl::Duration now = BootTime();
  absl::StatusOr<std::string> etag =
      client_.PutObject(LeaseKey(server_), value,
                        etag_.empty() ? Precondition::Absent() : Precondition::This(etag_), until);
  bool mine = etag.ok();
  if (absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status())) {
    // An attempt that got no answer may have been carried out.
    etag = Find(value, until);
    mine = etag.ok() && !etag->empty();
    if (etag.ok() && !mine) etag = client_.PutObject(LeaseKey(server_), value, {}, until);
  }
  // Until the answer, others may have seen it end.
  const bool kept = mine && BootTime() < end_;
  RETURN_IF_ERROR(etag.status());
  etag_ = *std::move(etag);
  end_ = now + length_;
  return kept;
}

void Lease::End() { (void)client_.Delete(LeaseKey(server_), /*until=*/{}); }

absl::StatusOr<bool> SeenLeases::IsAlive(const std::string& server, SteadyTime until) {
  ASSIGN_OR_RETURN(const Life life, Look(server, until));
  return life == Life::kLives;
}

absl::StatusOr<SeenLeases::Life> SeenLeases::Look(const std::string& server, SteadyTime until) {
  // The lease was so at this time at the earliest; the answer may come much later.
  const SteadyTime asked = SteadyClock::now();
  const absl::StatusOr<ObjectBytes> lease = client_.GetObject(LeaseKey(server), until);
  std::lock_guard lock(mutex_);
  if (absl::IsNotFound(lease.status()) || (lease.ok() && lease->bytes == kEnded)) {
    seen_.erase(server);
    return Life::kSaidToHaveEnded;
  }
  RETURN_IF_ERROR(lease.status());
  if (seen_.size() > kMostSeenLeases) seen_.clear();
  Seen& seen = seen_[server];
  if (seen.etag != lease->etag) {
    seen = {lease->etag, SteadyClock::now(), LeaseLength(lease->bytes)};
  }
  return TimeBetween(seen.since, asked) <= seen.length ? Life::kLives : Life::kSilent;
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
    ASSIGN_OR_RETURN(const Life life, Look(server, until));
    if (life == Life::kLives) {
      living.insert(server);
      continue;
    }
    any = true;
    ended[server] = lease.etag;
    if (life == Life::kSaidToHaveEnded) continue;
    // A server that wakes at this moment and renews it first lives on.
    absl::StatusOr<std::string> etag =
        client_.PutObject(lease.key, kEnded, Precondition::This(lease.etag), until);
    if (etag.ok()) ended[server] = *std::move(etag);
  }
  any = any || std::ranges::any_of(living_, [&](const std::string& server) {
          return !living.contains(server) && !ended.contains(server);
        });
  living_ = std::move(living);
  ended_ = std::move(ended);
  return any;
}

}  // namespace ovq::s3
