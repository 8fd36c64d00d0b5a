#include "server/redis/owned_sessions.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ovq::redis {

std::string WriteNumber::Before() const {
  return before.empty() ? " unknown " : absl::StrCat(" ", absl::StrJoin(before, " "), " ");
}

void OwnedSessions::Add(const std::string& id, const std::string& epoch) {
  std::lock_guard lock(mutex_);
  by_id_[id] = {.epoch = epoch};
}

bool OwnedSessions::BeginCreate(const std::string& id) {
  std::lock_guard lock(mutex_);
  return by_id_.try_emplace(id, Owned{.epoch = "1", .creating = true}).second;
}

void OwnedSessions::EndCreate(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found != by_id_.end()) found->second.creating = false;
}

void OwnedSessions::Remove(const std::string& id) {
  std::lock_guard lock(mutex_);
  by_id_.erase(id);
}

void OwnedSessions::Lose(const std::string& id, const std::string& epoch) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second.epoch != epoch) return;
  by_id_.erase(found);
  if (lost_) lost_(id);  // under the lock, before the session can be this server's again
}

std::vector<std::pair<std::string, std::string>> OwnedSessions::All() const {
  std::lock_guard lock(mutex_);
  std::vector<std::pair<std::string, std::string>> all;
  for (const auto& [id, owned] : by_id_) {
    if (!owned.creating) all.emplace_back(id, owned.epoch);
  }
  return all;
}

std::string OwnedSessions::Epoch(const std::string& id) const {
  std::lock_guard lock(mutex_);
  const Owned* const owned = Find(id);
  return owned == nullptr ? kNotOwned : owned->epoch;
}

WriteNumber OwnedSessions::NextWrite(const std::string& id, const std::string& epoch) {
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || found->second.epoch != epoch) return {.id = id};
  Owned& owned = found->second;
  WriteNumber write = {id, epoch, owned.next++, owned.last};
  owned.last = {write.number};  // so that the next one may be sent with it
  return write;
}

absl::Status OwnedSessions::EndWrite(const WriteNumber& write, const absl::StatusOr<Reply>& reply,
                                     const absl::Status& gone, bool unanswered, bool entry) {
  const bool vanished = reply.ok() && reply->text == "GONE";
  if (absl::IsAborted(reply.status()) || (vanished && write.owned())) {
    Lose(write.id, write.epoch);
    if (unanswered) {
      return absl::UnknownError(absl::StrCat("session ", write.id,
                                             ": this server does not own it any more, and an "
                                             "attempt that got no answer may have been stored"));
    }
    return absl::AbortedError(absl::StrCat("session ", write.id, ": this server does not own it",
                                           vanished ? ", it is not in Redis any more" : ""));
  }
  if (vanished) return gone;
  std::lock_guard lock(mutex_);
  const auto found = by_id_.find(write.id);
  if (found == by_id_.end() || found->second.epoch != write.epoch) return reply.status();
  Owned& owned = found->second;
  if (reply.ok() || owned.last != std::vector<uint64_t>{write.number}) return reply.status();
  // Redis refused the write, unless it gave no answer.
  const bool maybe_done = absl::IsUnavailable(reply.status());
  owned.last = write.before;
  if (maybe_done && entry) owned.last.clear();
  if (maybe_done && !owned.last.empty()) owned.last.push_back(write.number);
  return reply.status();
}

}  // namespace ovq::redis
