#include "server/s3/garbage.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/s3/ask_box.h"
#include "server/s3/lease.h"

namespace ovq::s3 {
namespace {

constexpr char kProbePrefix[] = "probe/";

SteadyTime Soon(absl::Duration patience) {
  return After(std::chrono::steady_clock::now(), patience);
}

}  // namespace

void Garbage::RemoveLater(std::vector<std::string> keys) {
  if (keys.empty()) return;
  std::lock_guard lock(mutex_);
  later_.emplace_back(After(std::chrono::steady_clock::now(), replaced_life_), std::move(keys));
}

std::vector<std::string> Garbage::NextDue(SteadyTime now) {
  std::lock_guard lock(mutex_);
  if (later_.empty() || later_.front().first > now) return {};
  std::vector<std::string> keys = std::move(later_.front().second);
  later_.pop_front();
  return keys;
}

bool Garbage::Remove(const std::vector<std::string>& keys) {
  return std::ranges::all_of(
      keys, [this](const std::string& key) { return client_.Delete(key, /*until=*/{}).ok(); });
}

void Garbage::RemoveDue() {
  while (!stopped_) {
    const std::vector<std::string> keys = NextDue(std::chrono::steady_clock::now());
    if (keys.empty() || !Remove(keys)) return;
  }
}

void Garbage::RemoveAll(SteadyTime until) {
  while (std::chrono::steady_clock::now() < until) {
    const std::vector<std::string> keys = NextDue(kNever);
    if (keys.empty() || !Remove(keys)) return;
  }
}

absl::Status Garbage::RemoveUnnamed(const std::string& id, const std::vector<std::string>& keys,
                                    absl::Duration patience) {
  std::set<std::string> named;
  const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, Soon(patience));
  if (stored.ok() && !stored->object.removed) {
    for (std::string& key : DataKeys(id, stored->object)) named.insert(std::move(key));
  } else if (!stored.ok() && (!absl::IsNotFound(stored.status()) || sessions_.Contains(id))) {
    return absl::IsUnavailable(stored.status()) ? stored.status() : absl::OkStatus();
  } else {
    // It may have been quarantined since the list.
    const std::string damaged = absl::StrCat(kDamagedPrefix, id);
    const absl::Status kept = client_.GetObject(damaged, Soon(patience)).status();
    if (!absl::IsNotFound(kept)) return kept;
  }
  for (const std::string& key : keys) {
    if (stopped_) return absl::CancelledError("the server ends");
    if (named.contains(key)) continue;
    const absl::Status status = client_.Delete(key, Soon(patience));
    if (absl::IsUnavailable(status)) return status;  // any other is this object's own
  }
  return absl::OkStatus();
}

absl::Status Garbage::SweepData(absl::Duration patience) {
  // The sessions are listed first: data of one that is created meanwhile is young.
  ASSIGN_OR_RETURN(const std::vector<std::string> there, ListSessions(client_, Soon(patience)));
  ASSIGN_OR_RETURN(const std::vector<ListedObject> damaged,
                   client_.ListAll(kDamagedPrefix, Soon(patience)));
  std::set<std::string> others(there.begin(), there.end());
  for (const std::string& id : sessions_.All()) others.erase(id);
  for (const ListedObject& object : damaged) {
    others.insert(object.key.substr(std::string_view(kDamagedPrefix).size()));
  }
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(kDataPrefix, next, Soon(patience)));
    std::map<std::string, std::vector<std::string>> old;
    for (const ListedObject& object : page.objects) {
      const std::string rest = object.key.substr(std::string_view(kDataPrefix).size());
      const std::string id = rest.substr(0, rest.find('/'));
      const bool is_old = object.modified + orphan_age_ < page.now;
      if (!id.empty() && is_old && !others.contains(id)) old[id].push_back(object.key);
    }
    for (const auto& [id, keys] : old) RETURN_IF_ERROR(RemoveUnnamed(id, keys, patience));
    next = std::move(page.next);
  } while (!next.empty());
  return absl::OkStatus();
}

absl::Status Garbage::SweepOld(const std::string& prefix, absl::Duration patience) {
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(prefix, next, Soon(patience)));
    for (const ListedObject& object : page.objects) {
      if (object.modified + orphan_age_ >= page.now) continue;
      if (stopped_) return absl::CancelledError("the server ends");
      // A server may renew its lease at this moment.
      const bool lease = prefix == kServerPrefix;
      if (lease && object.bytes != std::string_view(kEnded).size()) continue;
      RETURN_IF_ERROR(lease ? client_.DeleteThis(object.key, object.etag, Soon(patience))
                            : client_.Delete(object.key, Soon(patience)));
    }
    next = std::move(page.next);
  } while (!next.empty());
  return absl::OkStatus();
}

absl::Status Garbage::SweepRemoved(absl::Duration patience) {
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(kSessionPrefix, next, Soon(patience)));
    for (const ListedObject& object : page.objects) {
      const bool is_old = object.modified + orphan_age_ < page.now;
      if (object.bytes != RemovedObjectBytes() || !is_old) continue;
      const std::string id = object.key.substr(std::string_view(kSessionPrefix).size());
      const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, Soon(patience));
      if (!stored.ok() || !stored->object.removed) continue;
      if (stopped_) return absl::CancelledError("the server ends");
      RETURN_IF_ERROR(client_.DeleteThis(object.key, stored->etag, Soon(patience)));
    }
    next = std::move(page.next);
  } while (!next.empty());
  return absl::OkStatus();
}

absl::Status Garbage::SweepOrphans(absl::Duration patience) {
  RETURN_IF_ERROR(SweepData(patience));
  RETURN_IF_ERROR(SweepRemoved(patience));
  for (const char* prefix : {kAskPrefix, kBellPrefix, kProbePrefix, kServerPrefix}) {
    RETURN_IF_ERROR(SweepOld(prefix, patience));
  }
  return absl::OkStatus();
}

}  // namespace ovq::s3
