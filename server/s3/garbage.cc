#include "server/s3/garbage.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/s3/ask_box.h"
#include "server/s3/lease.h"

namespace ovq::s3 {
namespace {

constexpr char kProbePrefix[] = "probe/";
constexpr size_t kMostRemoved = 100;  // objects in one pass

SteadyTime Soon(absl::Duration patience) {
  return After(std::chrono::steady_clock::now(), patience);
}

}  // namespace

void Garbage::RemoveLater(std::vector<std::string> keys) {
  if (keys.empty()) return;
  std::lock_guard lock(mutex_);
  later_.emplace_back(After(std::chrono::steady_clock::now(), replaced_life_), std::move(keys));
}

void Garbage::RemoveDue(bool all) {
  const SteadyTime now = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (size_t removed = 0; !later_.empty() && (all || removed < kMostRemoved);) {
    if (!all && later_.front().first > now) return;
    const std::vector<std::string> keys = std::move(later_.front().second);
    later_.pop_front();
    lock.unlock();
    for (const std::string& key : keys) {
      // An object that cannot be removed now is an orphan.
      if (!client_.Delete(key, /*until=*/{}).ok()) return;
    }
    removed += keys.size();
    lock.lock();
  }
}

absl::Status Garbage::DeleteOrphan(const std::string& key, const std::string& etag,
                                   absl::Duration patience) {
  if (stopped_) return absl::CancelledError("the server ends");
  return client_.Delete(key, Soon(patience), etag);
}

absl::Status Garbage::AddIds(const std::string& prefix, absl::Duration patience,
                             std::set<std::string>& ids) {
  ASSIGN_OR_RETURN(const std::vector<ListedObject> all, client_.ListAll(prefix, Soon(patience)));
  for (const ListedObject& object : all) ids.insert(object.key.substr(prefix.size()));
  return absl::OkStatus();
}

absl::Status Garbage::RemoveUnnamed(const std::string& id, const std::vector<std::string>& keys,
                                    absl::Duration patience) {
  std::set<std::string> named;
  const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, Soon(patience));
  if (stored.ok()) {
    for (std::string& key : DataKeys(id, stored->object)) named.insert(std::move(key));
  } else if (!absl::IsNotFound(stored.status()) || sessions_.Contains(id)) {
    return absl::IsUnavailable(stored.status()) ? stored.status() : absl::OkStatus();
  }
  for (const std::string& key : keys) {
    if (!named.contains(key)) RETURN_IF_ERROR(DeleteOrphan(key, "", patience));
  }
  return absl::OkStatus();
}

absl::Status Garbage::SweepData(absl::Duration patience) {
  // The data is listed first: a session that is created meanwhile has data that is young.
  std::map<std::string, std::vector<std::string>> old;
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(kDataPrefix, next, Soon(patience)));
    for (const ListedObject& object : page.objects) {
      const std::string rest = object.key.substr(std::string_view(kDataPrefix).size());
      const bool is_old = !rest.empty() && object.modified + orphan_age_ < page.now;
      if (is_old) old[rest.substr(0, rest.find('/'))].push_back(object.key);
    }
    next = std::move(page.next);
  } while (!next.empty());
  if (old.empty()) return absl::OkStatus();
  std::set<std::string> others;
  RETURN_IF_ERROR(AddIds(kSessionPrefix, patience, others));
  for (const std::string& id : sessions_.All()) others.erase(id);
  RETURN_IF_ERROR(AddIds(kDamagedPrefix, patience, others));
  for (const auto& [id, keys] : old) {
    if (!others.contains(id)) RETURN_IF_ERROR(RemoveUnnamed(id, keys, patience));
  }
  return absl::OkStatus();
}

absl::Status Garbage::SweepOld(const std::string& prefix, absl::Duration patience) {
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(prefix, next, Soon(patience)));
    for (const ListedObject& object : page.objects) {
      if (object.modified + orphan_age_ >= page.now) continue;
      RETURN_IF_ERROR(DeleteOrphan(object.key, object.etag, patience));
    }
    next = std::move(page.next);
  } while (!next.empty());
  return absl::OkStatus();
}

absl::Status Garbage::SweepRemoved(absl::Duration patience) {
  // Others are larger: they have a journal.
  const SessionObject removed = {.nonce = UnguessableHex(), .removed = true};
  const size_t most = EncodeSessionObject(removed).size();
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(kSessionPrefix, next, Soon(patience)));
    for (const ListedObject& object : page.objects) {
      if (object.bytes > most || object.modified + orphan_age_ >= page.now) continue;
      const std::string id = object.key.substr(std::string_view(kSessionPrefix).size());
      const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, Soon(patience));
      if (!stored.ok() || !stored->object.removed) continue;
      RETURN_IF_ERROR(DeleteOrphan(object.key, stored->etag, patience));
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
