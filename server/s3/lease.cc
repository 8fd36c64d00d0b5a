#include "server/s3/lease.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace ovq::s3 {
namespace {

constexpr absl::Duration kLongestLease = absl::Minutes(10);
constexpr size_t kMostSeenLeases = 4096;
constexpr int kMostFinds = 3;  // of this server's own lease, for one renewal

std::string LeaseKey(const std::string& server) { return absl::StrCat(kServerPrefix, server); }

// True for the status of a write that found another lease there than the one that it was to
// replace.
bool IsAnother(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
}

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

std::string Lease::Value(uint64_t renewal) const {
  return absl::StrCat(renewal, " ", absl::ToInt64Milliseconds(length_));
}

// Returns the lease if it is one that this server has sent since its ETag was known; otherwise one
// without an ETag.
absl::StatusOr<ObjectBytes> Lease::Find(SteadyTime until) {
  absl::StatusOr<ObjectBytes> lease = client_.GetObject(LeaseKey(server_), until);
  if (absl::IsNotFound(lease.status())) return ObjectBytes();
  RETURN_IF_ERROR(lease.status());
  uint64_t renewal = 0;
  const bool sent = absl::SimpleAtoi(lease->bytes.substr(0, lease->bytes.find(' ')), &renewal) &&
                    renewal > answered_ && renewal <= renewals_ && lease->bytes == Value(renewal);
  return sent ? *std::move(lease) : ObjectBytes();
}

absl::StatusOr<bool> Lease::Renew(SteadyTime until) {
  const std::string key = LeaseKey(server_), value = Value(++renewals_);
  const absl::Duration now = BootTime();
  absl::StatusOr<std::string> etag = client_.PutObject(
      key, value, etag_.empty() ? Precondition::Absent() : Precondition::This(etag_), until);
  bool mine = true;
  for (int finds = 0; finds < kMostFinds && mine && IsAnother(etag.status()); ++finds) {
    // Attempts that got no answer, also those of earlier calls, may have been carried out.
    ASSIGN_OR_RETURN(ObjectBytes there, Find(until));
    mine = !there.etag.empty();
    if (!mine) end_ = absl::ZeroDuration();  // a later call may find that this one was carried out
    if (there.bytes == value) {
      etag = std::move(there.etag);
    } else {
      etag = client_.PutObject(
          key, value, mine ? Precondition::This(std::move(there.etag)) : Precondition(), until);
    }
  }
  // Until the answer, others may have seen it end.
  const bool kept = mine && BootTime() < end_;
  RETURN_IF_ERROR(etag.status());
  etag_ = *std::move(etag);
  answered_ = renewals_;
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
