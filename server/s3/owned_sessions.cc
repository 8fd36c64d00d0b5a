#include "server/s3/owned_sessions.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace ovq::s3 {
namespace {

constexpr int kMostConflicts = 16;

size_t KeptBytes(const StoredObject& stored) { return sizeof(stored) + stored.object.tail.size(); }

}  // namespace

void OwnedSessions::Keep(const std::string& id, Owned& owned, StoredObject stored) {
  Drop(owned);
  kept_bytes_ += KeptBytes(stored);
  owned.stored = std::move(stored);
  owned.used = used_.insert(used_.end(), id);
  while (kept_bytes_ > cache_bytes_ && !used_.empty()) Drop(by_id_[used_.front()]);
}

std::optional<StoredObject> OwnedSessions::Drop(Owned& owned) {
  if (!owned.stored) return std::nullopt;
  kept_bytes_ -= KeptBytes(*owned.stored);
  used_.erase(owned.used);
  return std::exchange(owned.stored, std::nullopt);
}

void OwnedSessions::Add(const std::string& id, StoredObject stored) {
  std::lock_guard lock(mutex_);
  Owned& owned = by_id_[id];
  if (owned.term == 0) owned.term = ++last_term_;
  owned.epoch = stored.object.epoch;
  owned.creating = false;
  Keep(id, owned, std::move(stored));
}

uint64_t OwnedSessions::BeginCreate(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto [owned, added] = by_id_.try_emplace(id, Owned{.epoch = 1, .creating = true});
  if (!added) return 0;
  return owned->second.term = ++last_term_;
}

HeldSession OwnedSessions::Remove(const std::string& id, uint64_t term) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second.term != term) return {.id = id};
  HeldSession held{id, term, found->second.epoch, Drop(found->second)};
  by_id_.erase(found);
  return held;
}

void OwnedSessions::Lose(const std::string& id, uint64_t term) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second.term != term) return;
  Drop(found->second);
  by_id_.erase(found);
  if (lost_) lost_(id);
}

uint64_t OwnedSessions::Term(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const Owned* const owned = Find(id);
  return owned == nullptr ? 0 : owned->term;
}

bool OwnedSessions::Owns(const std::string& id, uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  const Owned* const owned = Find(id);
  return owned != nullptr && owned->epoch == epoch;
}

std::vector<std::string> OwnedSessions::All() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [id, owned] : by_id_) all.push_back(id);
  return all;
}

HeldSession OwnedSessions::Hold(const std::string& id, uint64_t term) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  const bool owned = found != by_id_.end() && found->second.term == term;
  if (!owned || found->second.creating) return {.id = id};
  return {id, term, found->second.epoch, Drop(found->second)};
}

void OwnedSessions::Return(HeldSession held) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(held.id);
  if (found == by_id_.end() || found->second.term != held.term || !held.stored) return;
  Keep(held.id, found->second, *std::move(held.stored));
}

absl::Status OwnedSessions::Write(HeldSession& held, const Change& change, SteadyTime until,
                                  bool& unanswered) {
  const std::string key = SessionKey(held.id), nonce = UnguessableHex();
  for (int failures = 0;; ++failures) {
    if (!held.stored) {
      ASSIGN_OR_RETURN(held.stored, ReadSessionObject(client_, held.id, until));
      // An attempt that got no answer was carried out.
      if (held.stored->object.nonce == nonce) return absl::OkStatus();
      if (held.stored->object.removed) return absl::NotFoundError("the session was removed");
    }
    SessionObject next = held.stored->object;
    if (next.owner != server_ || next.epoch != held.epoch) {
      return absl::AbortedError("this server does not own the session");
    }
    if (absl::Status status = change(next); !status.ok()) {
      return absl::IsCancelled(status) ? absl::OkStatus() : status;
    }
    next.nonce = nonce;
    bool sent = false;
    absl::StatusOr<std::string> etag = client_.PutObject(
        key, EncodeSessionObject(next), Precondition::This(held.stored->etag), /*until=*/{}, &sent);
    if (etag.ok()) {
      held.stored = StoredObject{std::move(next), *std::move(etag)};
      return absl::OkStatus();
    }
    held.stored.reset();
    unanswered |= sent;
    const absl::Status& status = etag.status();
    const bool conflict = absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
    if (conflict && failures >= kMostConflicts) return absl::UnavailableError(status.message());
    if (conflict) continue;
    if (!absl::IsUnavailable(status)) return status;
    const SteadyTime again = After(std::chrono::steady_clock::now(), PauseAfter(failures));
    if (again > until) return status;
    std::this_thread::sleep_until(again);
  }
}

absl::Status OwnedSessions::Commit(const std::string& id, uint64_t term, const Change& change,
                                   const absl::Status& gone, SteadyTime until) {
  HeldSession held = Hold(id, term);
  bool unanswered = false;
  const absl::Status status = Write(held, change, until, unanswered);
  const bool vanished = absl::IsNotFound(status);
  if (vanished && held.epoch == 0) return gone;
  if (!vanished && !absl::IsAborted(status)) {
    Return(std::move(held));
    return status;
  }
  Lose(id, held.term);
  if (unanswered) {
    return absl::UnknownError(absl::StrCat("session ", id,
                                           ": this server does not own it any more, and an "
                                           "attempt that got no answer may have been stored"));
  }
  return absl::AbortedError(absl::StrCat("session ", id, ": this server does not own it",
                                         vanished ? ", it is not stored any more" : ""));
}

}  // namespace ovq::s3
