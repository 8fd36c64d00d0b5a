#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/redis/redis_scripts.h"
#include "server/redis/redis_store.h"

namespace ovq::redis {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr absl::Duration kRequestInterval = absl::Milliseconds(100);
constexpr size_t kAcquiredTogether = 64;

absl::Status NotThere(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
}

}  // namespace

void RedisStore::Acquire(const std::string& id, Acquired done) {
  {
    std::lock_guard lock(mutex_);
    acquisitions_.push_back({.id = id, .begin = SteadyClock::now(), .done = std::move(done)});
  }
  changed_.notify_all();
}

void RedisStore::SetListener(std::function<void(const std::string& id)> asked) {
  std::lock_guard lock(mutex_);
  listener_ = std::move(asked);
}

void RedisStore::Release(const std::string& id) {
  Command command = Script(kReleaseScript, id, {});
  {
    std::lock_guard lock(mutex_);
    if (owned_.erase(id) == 0) return;
    releasing_.insert(id);
  }
  const auto write = [this, command = std::move(command)](Change& self) {
    const absl::Status status = RunSurely(command, self.begin).status();
    std::lock_guard lock(mutex_);
    releasing_.erase(self.id);
    return status;
  };
  Enqueue({.kind = nullptr, .id = id, .begin = SteadyClock::now(), .write = write});
}

void RedisStore::Decline(const std::string& id) {
  const auto write = [this](Change& self) {
    return RunSurely({"DEL", absl::StrCat("ovq:asked:", self.id)}, self.begin).status();
  };
  Enqueue({.kind = nullptr, .id = id, .begin = SteadyClock::now(), .write = write});
}

void RedisStore::Quarantine(const std::string& id) {
  Command command = Script(kQuarantineScript, id, {id});
  {
    std::lock_guard lock(mutex_);
    owned_.erase(id);
  }
  const auto write = [this, command = std::move(command)](Change& self) {
    return RunSurely(command, self.begin).status();
  };
  Enqueue({.kind = nullptr, .id = id, .begin = SteadyClock::now(), .write = write});
}

// Checks what the script kAcquireScript returned of a session that is this server's now.
absl::StatusOr<store::FoundSession> RedisStore::Check(RedisConnection& connection,
                                                      const std::string& id, const Reply& reply) {
  const std::string& bytes = reply.items[2].text;
  {
    std::lock_guard lock(mutex_);
    owned_[id] = {.epoch = reply.items[1].text, .journal_bytes = bytes.size()};
  }
  const auto check = [&]() -> absl::StatusOr<store::FoundSession> {
    ASSIGN_OR_RETURN(const store::Journal journal, store::DecodeJournal(bytes));
    if (journal.head.id != id) {
      return absl::DataLossError(absl::StrCat("journal: of the session ", journal.head.id));
    }
    const auto snapshot = static_cast<uint64_t>(reply.items[4].number);
    if (journal.head.version > 0 && snapshot != journal.head.snapshot_bytes) {
      return absl::DataLossError(
          absl::StrCat("snapshot: ", snapshot, " bytes, expected ", journal.head.snapshot_bytes));
    }
    if (journal.torn_bytes > 0) {
      RETURN_IF_ERROR(
          connection.Run(Script(kCutScript, id, {absl::StrCat(journal.good_bytes)})).status());
      std::lock_guard lock(mutex_);
      owned_[id].journal_bytes = journal.good_bytes;
    }
    return store::FoundSession{journal.head, journal.version(), journal.mark(),
                               static_cast<size_t>(reply.items[3].number)};
  };
  absl::StatusOr<store::FoundSession> found = check();
  if (found.ok() || absl::IsUnavailable(found.status())) return found;
  Quarantine(id);
  const absl::Status damaged =
      absl::DataLossError(absl::StrCat("session ", id, ": ", std::string(found.status().message()),
                                       "; its keys now begin with damaged:"));
  if (report_) report_({.kind = "read", .status = damaged});
  return damaged;
}

absl::StatusOr<store::RecoveredSessions> RedisStore::Recover() {
  RedisConnection connection(options_.address, options_.timeout);
  ASSIGN_OR_RETURN(const Reply ids, connection.Run({"SMEMBERS", "ovq:sessions"}));
  std::vector<std::string> sorted;
  for (const Reply& id : ids.items) sorted.push_back(id.text);
  std::ranges::sort(sorted);
  store::RecoveredSessions found;
  for (size_t begin = 0; begin < sorted.size(); begin += kAcquiredTogether) {
    const size_t end = std::min(sorted.size(), begin + kAcquiredTogether);
    std::vector<Command> commands;
    for (size_t i = begin; i < end; ++i) {
      commands.push_back(Script(kAcquireScript, sorted[i], {sorted[i]}));
    }
    ASSIGN_OR_RETURN(const auto replies, connection.RunTogether(commands));
    for (size_t i = begin; i < end; ++i) {
      RETURN_IF_ERROR(replies[i - begin].status());
      const Reply& reply = *replies[i - begin];
      const std::string& outcome = reply.items[0].text;
      if (outcome == "ELSEWHERE") ++found.elsewhere;
      if (outcome != "MINE") continue;
      absl::StatusOr<store::FoundSession> session = Check(connection, sorted[i], reply);
      if (session.ok()) {
        found.sessions.push_back(*std::move(session));
      } else if (absl::IsDataLoss(session.status())) {
        found.damaged.emplace_back(session.status().message());
      } else {
        return session.status();
      }
    }
  }
  return found;
}

bool RedisStore::TryFinish(RedisConnection& connection, Acquisition& call, bool ending) {
  const std::string& id = call.id;
  const absl::Status in_use =
      absl::FailedPreconditionError(absl::StrCat("session ", id, ": in use by another call"));
  const auto finish = [&](absl::StatusOr<store::FoundSession> found) {
    call.done(std::move(found));
    return true;
  };
  {
    std::lock_guard lock(mutex_);
    if (owned_.contains(id)) {
      call.done(in_use);
      return true;
    }
    if (releasing_.contains(id) && !ending) return false;
  }
  const auto now = SteadyClock::now();
  const bool in_time =
      !ending && now - call.begin < absl::ToChronoNanoseconds(options_.ownership_timeout);
  const absl::StatusOr<Reply> reply = connection.Run(Script(kAcquireScript, id, {id}));
  if (!reply.ok()) {
    const bool again = absl::IsUnavailable(reply.status()) || absl::IsAborted(reply.status());
    return again && in_time ? false : finish(reply.status());
  }
  const std::string& outcome = reply->items[0].text;
  if (outcome == "NONE") return finish(NotThere(id));
  if (outcome == "MINE") return finish(Check(connection, id, *reply));
  const std::string& owner = reply->items[1].text;
  if (call.asked != Time() && reply->items[2].number == 0) return finish(in_use);
  if (!in_time) {
    (void)connection.Run({"DEL", absl::StrCat("ovq:asked:", id)});
    return finish(absl::UnavailableError(
        absl::StrCat("session ", id, ": another server has it and does not answer")));
  }
  if (now - call.asked < absl::ToChronoNanoseconds(kRequestInterval)) return false;
  call.asked = now;
  const std::string requests = absl::StrCat("ovq:asks:", owner);
  (void)connection.RunTogether({{"SET", absl::StrCat("ovq:asked:", id), "1", "PX", "10000"},
                                {"RPUSH", requests, id},
                                {"PEXPIRE", requests, "10000"}});
  return false;
}

void RedisStore::Renew(RedisConnection& connection) {
  const absl::StatusOr<Reply> reply = connection.Run(
      Script(kRenewScript, "", {absl::StrCat(absl::ToInt64Milliseconds(options_.lease))}));
  if (!reply.ok() || reply->number == 1) return;
  // The lease is over: others may own the sessions by now. This server goes on under another name.
  const std::string name = UnguessableHex();
  if (!connection
           .Run({"SET", absl::StrCat("ovq:lease:", name), "1", "PX",
                 absl::StrCat(absl::ToInt64Milliseconds(options_.lease))})
           .ok()) {
    return;
  }
  std::vector<std::string> lost;
  {
    std::lock_guard lock(mutex_);
    server_ = name;
    for (const auto& [id, owned] : std::exchange(owned_, {})) lost.push_back(id);
  }
  if (lost_) lost_(lost);
}

void RedisStore::OwnerLoop() {
  NameThisThread("moves");
  RedisConnection connection(options_.address, options_.timeout);
  const auto interval = absl::ToChronoNanoseconds(options_.lease / 3);
  Time renewed = SteadyClock::now();
  std::vector<Acquisition> waiting;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait_until(lock,
                        waiting.empty()
                            ? renewed + interval
                            : SteadyClock::now() + absl::ToChronoNanoseconds(kPollInterval),
                        [this] { return owner_ending_ || !acquisitions_.empty(); });
    std::ranges::move(std::exchange(acquisitions_, {}), std::back_inserter(waiting));
    const bool ending = owner_ending_;
    lock.unlock();
    if (SteadyClock::now() - renewed >= interval) {
      Renew(connection);
      renewed = SteadyClock::now();
    }
    std::erase_if(waiting, [&](Acquisition& call) { return TryFinish(connection, call, ending); });
    if (ending) return;
    lock.lock();
  }
}

void RedisStore::ListenLoop() {
  NameThisThread("asked");
  RedisConnection connection(options_.address, options_.timeout);
  for (;;) {
    std::string requests;
    {
      std::lock_guard lock(mutex_);
      if (ending_) return;
      requests = absl::StrCat("ovq:asks:", server_);
    }
    const absl::StatusOr<Reply> reply = connection.Run({"BLPOP", requests, "0.1"});
    if (!reply.ok()) {
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(kRequestInterval));
    } else if (reply->items.size() == 2) {
      std::unique_lock lock(mutex_);
      const std::function<void(const std::string&)> tell = listener_;
      lock.unlock();
      if (tell) tell(reply->items[1].text);
    }
  }
}

}  // namespace ovq::redis
