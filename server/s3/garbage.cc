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

}  // namespace

void Garbage::RemoveLater(std::vector<std::string> keys) {
  if (keys.empty()) return;
  std::lock_guard lock(mutex_);
  later_.emplace_back(After(std::chrono::steady_clock::now(), replaced_life_), std::move(keys));
}

void Garbage::RemoveDue(bool all) {
  std::unique_lock lock(mutex_);
  while (!later_.empty() && (all || later_.front().first <= std::chrono::steady_clock::now())) {
    const std::vector<std::string> keys = std::move(later_.front().second);
    later_.pop_front();
    lock.unlock();
    for (const std::string& key : keys) {
      // An object that cannot be removed now is an orphan.
      if (!client_.Delete(key, /*until=*/{}).ok()) break;
    }
    lock.lock();
  }
}

absl::Status Garbage::AddIds(const std::string& prefix, SteadyTime until,
                             std::set<std::string>& ids) {
  ASSIGN_OR_RETURN(const std::vector<ListedObject> all, client_.ListAll(prefix, until));
  for (const ListedObject& object : all) ids.insert(object.key.substr(prefix.size()));
  return absl::OkStatus();
}

absl::Status Garbage::RemoveUnnamed(const std::string& id, const std::vector<std::string>& keys,
                                    SteadyTime until) {
  std::set<std::string> named;
  const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, until);
  if (stored.ok()) {
    for (std::string& key : DataKeys(id, stored->object)) named.insert(std::move(key));
  } else if (!absl::IsNotFound(stored.status())) {
    return absl::IsUnavailable(stored.status()) ? stored.status() : absl::OkStatus();
  }
  for (const std::string& key : keys) {
    if (!named.contains(key)) RETURN_IF_ERROR(client_.Delete(key, until));
  }
  return absl::OkStatus();
}

absl::Status Garbage::SweepData(SteadyTime until) {
  // The data is listed first: a session that is created meanwhile has data that is young.
  std::map<std::string, std::vector<std::string>> old;
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(kDataPrefix, next, until));
    for (const ListedObject& object : page.objects) {
      const std::string rest = object.key.substr(std::string_view(kDataPrefix).size());
      const bool is_old = object.modified + orphan_age_ < page.now;
      if (is_old) old[rest.substr(0, rest.find('/'))].push_back(object.key);
    }
    next = std::move(page.next);
  } while (!next.empty());
  if (old.empty()) return absl::OkStatus();
  std::set<std::string> others;
  RETURN_IF_ERROR(AddIds(kSessionPrefix, until, others));
  for (const std::string& id : sessions_.All()) others.erase(id);
  RETURN_IF_ERROR(AddIds(kDamagedPrefix, until, others));
  for (const auto& [id, keys] : old) {
    if (!others.contains(id)) RETURN_IF_ERROR(RemoveUnnamed(id, keys, until));
  }
  return absl::OkStatus();
}

absl::Status Garbage::SweepOld(const std::string& prefix, SteadyTime until) {
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(prefix, next, until));
    for (const ListedObject& object : page.objects) {
      if (object.modified + orphan_age_ >= page.now) continue;
      RETURN_IF_ERROR(client_.Delete(object.key, until, object.etag));
    }
    next = std::move(page.next);
  } while (!next.empty());
  return absl::OkStatus();
}

absl::Status Garbage::SweepRemoved(SteadyTime until) {
  // Others are larger: they have a journal.
  const SessionObject removed = {.nonce = UnguessableHex(), .removed = true};
  const size_t most = EncodeSessionObject(removed).size();
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, client_.List(kSessionPrefix, next, until));
    for (const ListedObject& object : page.objects) {
      if (object.bytes > most || object.modified + orphan_age_ >= page.now) continue;
      const std::string id = object.key.substr(std::string_view(kSessionPrefix).size());
      const absl::StatusOr<StoredObject> stored = ReadSessionObject(client_, id, until);
      if (!stored.ok() || !stored->object.removed) continue;
      RETURN_IF_ERROR(client_.Delete(object.key, until, stored->etag));
    }
    next = std::move(page.next);
  } while (!next.empty());
  return absl::OkStatus();
}

absl::Status Garbage::SweepOrphans(SteadyTime until) {
  RETURN_IF_ERROR(SweepData(until));
  RETURN_IF_ERROR(SweepRemoved(until));
  for (const char* prefix : {kAskPrefix, kBellPrefix, kProbePrefix, kServerPrefix}) {
    RETURN_IF_ERROR(SweepOld(prefix, until));
  }
  return absl::OkStatus();
}

}  // namespace ovq::s3
