#include "server/redis/redis_ownership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/redis/redis_keys.h"
#include "server/redis/redis_scripts.h"
#include "server/store/work_threads.h"

namespace ovq::redis {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(5);
constexpr absl::Duration kRequestInterval = absl::Milliseconds(100);
constexpr absl::Duration kReleaseInterval = absl::Seconds(1);  // between attempts
constexpr char kRequestLifeMs[] = "10000";
constexpr size_t kAcquiredTogether = 64;
constexpr size_t kMostSeen = 1024;

// The length of a lease, by what it holds: "COUNT MS SINCE".
absl::Duration LeaseLength(const std::string& value) {
  const std::vector<std::string> words = absl::StrSplit(value, ' ');
  int64_t ms = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &ms) || ms <= 0) {
    return absl::InfiniteDuration();
  }
  return absl::Milliseconds(ms);
}

}  // namespace

RedisOwnership::RedisOwnership(RedisClient& client, const RedisStoreOptions& options,
                               store::Report report)
    : client_(client),
      options_(options),
      report_(std::move(report)),
      server_(UnguessableHex()),
      lease_(
          client_, options_, report_, server_, sessions_,
          [this](const std::string& id, const std::string& epoch) { AnswerRequest(id, epoch); }) {}

absl::Status RedisOwnership::Start() {
  RETURN_IF_ERROR(lease_.Start());
  move_thread_ = std::thread([this] { MoveLoop(); });
  return absl::OkStatus();
}

void RedisOwnership::End() {
  if (!store::EndThread(move_thread_, mutex_, changed_, ending_)) return;
  lease_.End();
}

// --- Requests from any thread ---

void RedisOwnership::Acquire(const std::string& id, Acquired done) {
  {
    std::lock_guard lock(mutex_);
    acquisitions_.push_back({.id = id, .begin = SteadyClock::now(), .done = std::move(done)});
  }
  changed_.notify_all();
}

void RedisOwnership::SetListener(store::OwnershipListener listener) {
  sessions_.SetListener(std::move(listener.lost));
  std::lock_guard lock(mutex_);
  listener_ = std::move(listener);
}

Command RedisOwnership::Script(const char* script, const std::string& id,
                               const std::vector<std::string>& arguments) const {
  return ScriptCommand(script, server_, id, arguments);
}

Command RedisOwnership::Script(const char* script, const WriteNumber& write,
                               const std::string& before,
                               const std::vector<std::string>& arguments) const {
  std::vector<std::string> all = {write.epoch, absl::StrCat(write.number), before};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return Script(script, write.id, all);
}

// --- Releasing ---

WriteNumber RedisOwnership::BeginLeave(const std::string& id, const std::string& epoch) {
  std::lock_guard lock(mutex_);
  releasing_.insert(id);
  WriteNumber last = sessions_.NextWrite(id, epoch);
  if (last.owned()) sessions_.Remove(id);
  return last;
}

void RedisOwnership::SendLeave(const WriteNumber& last, const char* script, SteadyTime until) {
  const SteadyTime begin = SteadyClock::now();
  absl::Status status = client_.Run(Script(script, last, "", {last.id}), until).status();
  if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsAborted(status)) {
    script = kReleaseScript;  // others can have it at least
    status = client_.Run(Script(script, last, "", {}), until).status();
  }
  store::ReportEnd(report_, "release", begin, status);
  std::lock_guard lock(mutex_);
  releasing_.erase(last.id);
  if (absl::IsUnavailable(status)) unreleased_.try_emplace(last.id, Leaving{last, script});
  changed_.notify_all();
}

void RedisOwnership::ReleaseLater(const std::string& id) {
  unreleased_.try_emplace(id, Leaving{{.id = id, .epoch = ""}, kReleaseScript});
}

// --- Acquiring ---

absl::StatusOr<store::FoundSession> RedisOwnership::CheckStored(const std::string& id,
                                                                const Reply& mine) {
  ASSIGN_OR_RETURN(const store::Journal journal, store::DecodeJournal(mine.items[2].text));
  const store::JournalHead& head = journal.head;
  if (head.id != id) {
    return absl::DataLossError(absl::StrCat("journal: of the session ", head.id));
  }
  const auto snapshot = static_cast<uint64_t>(mine.items[4].number);
  if (head.version > 0 && snapshot != head.snapshot_bytes) {
    return absl::DataLossError(
        absl::StrCat("snapshot: ", snapshot, " bytes, expected ", head.snapshot_bytes));
  }
  if (journal.torn_bytes > 0) {
    const WriteNumber cut = sessions_.NextWrite(id, mine.items[1].text);
    const absl::StatusOr<Reply> reply =
        client_.Run(Script(kCutScript, cut, "", {absl::StrCat(journal.good_bytes)}),
                    After(SteadyClock::now(), options_.patience));
    RETURN_IF_ERROR(sessions_.EndWrite(cut, reply, absl::OkStatus(), /*unanswered=*/false,
                                       /*entry=*/false));
  }
  return store::FoundSession{.head = head,
                             .version = journal.version(),
                             .mark = journal.mark(),
                             .text_bytes = static_cast<size_t>(mine.items[3].number),
                             .journal_bytes = journal.good_bytes,
                             .still_owned = [this, id, epoch = mine.items[1].text] {
                               return sessions_.Epoch(id) == epoch;
                             }};
}

absl::StatusOr<store::FoundSession> RedisOwnership::Register(const std::string& id,
                                                             const Reply& mine, uint64_t lapses) {
  {
    std::lock_guard lock(mutex_);
    sessions_.Add(id, mine.items[1].text);
    unreleased_.erase(id);
  }
  // A session that is added before a lapse is verified after it.
  if (lease_.lapses() != lapses) {
    sessions_.Remove(id);
    return absl::UnavailableError(
        absl::StrCat("session ", id, ": this server was not heard of for too long"));
  }
  absl::StatusOr<store::FoundSession> found = CheckStored(id, mine);
  if (!found.ok()) return GiveBack(id, found.status());
  return found;
}

absl::Status RedisOwnership::GiveBack(const std::string& id, const absl::Status& why) {
  const bool damaged = absl::IsDataLoss(why);
  SendLeave(BeginLeave(id, sessions_.Epoch(id)), damaged ? kQuarantineScript : kReleaseScript, {});
  const absl::Status status(why.code(),
                            absl::StrCat("session ", id, ": ", std::string(why.message()),
                                         damaged ? "; its keys now begin with damaged:" : ""));
  if (report_) report_({.kind = "read", .status = status});
  return status;
}

absl::StatusOr<store::RecoveredSessions> RedisOwnership::Recover() {
  const auto until = [this] { return After(SteadyClock::now(), options_.patience); };
  std::set<std::string> ids;
  std::string cursor = "0";
  do {
    ASSIGN_OR_RETURN(Reply page,
                     client_.Run({"SSCAN", kSessionsKey, cursor, "COUNT", "1000"}, until()));
    cursor = page.items[0].text;
    for (Reply& id : page.items[1].items) ids.insert(std::move(id.text));
  } while (cursor != "0");
  store::RecoveredSessions found;
  const auto add = [&](store::FoundSession session) {
    found.sessions.push_back(std::move(session));
  };
  RETURN_IF_ERROR(
      AcquireUnowned(std::vector<std::string>(ids.begin(), ids.end()), until(), add, found));
  return found;
}

absl::Status RedisOwnership::AcquireUnowned(const std::vector<std::string>& ids, SteadyTime until,
                                            const std::function<void(store::FoundSession)>& add,
                                            store::RecoveredSessions& others) {
  for (size_t begin = 0; begin < ids.size(); begin += kAcquiredTogether) {
    const size_t end = std::min(ids.size(), begin + kAcquiredTogether);
    std::vector<Command> commands;
    for (size_t i = begin; i < end; ++i) {
      commands.push_back(Script(kAcquireScript, ids[i], {"", "unasked"}));
    }
    bool unanswered = false;
    const uint64_t lapses = lease_.lapses();
    const Replies replies = lease_.RunTogether(commands, until, unanswered);
    for (size_t i = begin; i < end; ++i) {
      RETURN_IF_ERROR(replies[i - begin].status());
      const Reply& reply = *replies[i - begin];
      const std::string& outcome = reply.items[0].text;
      if (outcome == "ELSEWHERE") ++others.elsewhere;
      if (outcome != "MINE") continue;
      absl::StatusOr<store::FoundSession> session = Register(ids[i], reply, lapses);
      if (session.ok()) {
        add(*std::move(session));
      } else if (absl::IsUnavailable(session.status())) {
        return session.status();
      } else {
        others.damaged.emplace_back(session.status().message());
      }
    }
  }
  return absl::OkStatus();
}

// Looks at one page of the sessions.
void RedisOwnership::Sweep() {
  next_sweep_ = After(SteadyClock::now(), options_.sweep_interval);
  const absl::StatusOr<Reply> page =
      client_.Run({"SSCAN", kSessionsKey, std::exchange(sweep_cursor_, "0"), "COUNT", "1000"});
  if (!page.ok()) return;
  std::set<std::string> ids;
  for (const Reply& id : page->items[1].items) {
    if (!sessions_.Contains(id.text)) ids.insert(id.text);
  }
  std::unique_lock lock(mutex_);
  for (const std::string& id : releasing_) ids.erase(id);
  for (const auto& [id, leaving] : unreleased_) ids.erase(id);
  const std::function<void(store::FoundSession)> tell = listener_.found;
  lock.unlock();
  if (!tell) return;
  const auto tell_now = [&](store::FoundSession session) {
    const std::string id = session.head.id;
    tell(std::move(session));
    sessions_.SetTold(id);
  };
  store::RecoveredSessions others;
  const absl::Status status =
      AcquireUnowned(std::vector<std::string>(ids.begin(), ids.end()), {}, tell_now, others);
  if (!status.ok()) {
    lock.lock();
    for (const std::string& id : ids) {
      if (!sessions_.Contains(id)) ReleaseLater(id);
    }
    return;
  }
  sweep_cursor_ = page->items[0].text;
  if (sweep_cursor_ != "0") next_sweep_ = After(SteadyClock::now(), kRequestInterval);
}

void RedisOwnership::Finish(Acquisition& call, absl::StatusOr<store::FoundSession> found) {
  const bool answered =
      absl::IsNotFound(found.status()) || absl::IsFailedPrecondition(found.status());
  store::ReportEnd(report_, "acquire", call.begin, answered ? absl::OkStatus() : found.status());
  call.done(std::move(found));
}

bool RedisOwnership::AnswerLocally(Acquisition& call, bool ending, bool& wait) {
  bool removed = false, told = false;
  {
    std::lock_guard lock(mutex_);
    wait = releasing_.contains(call.id) && !ending;
    const auto leaving = unreleased_.find(call.id);
    removed = leaving != unreleased_.end() && leaving->second.script != kReleaseScript;
    if (!removed && !sessions_.Contains(call.id)) return false;
    told = sessions_.WasTold(call.id);
  }
  // Whoever asks for a session that was told as found did not know of it yet.
  if (removed || told) {
    Finish(call, absl::NotFoundError(absl::StrCat("session ", call.id, ": not found")));
    return true;
  }
  Finish(call, absl::FailedPreconditionError(
                   absl::StrCat("session ", call.id, ": in use by another call")));
  return true;
}

bool RedisOwnership::Ask(Acquisition& call, const Reply& elsewhere, bool ending) {
  const std::string &owner = elsewhere.items[1].text, &lease = elsewhere.items[2].text;
  const SteadyTime now = SteadyClock::now();
  if (call.asked && elsewhere.items[3].number == 1) {
    Finish(call, absl::FailedPreconditionError(
                     absl::StrCat("session ", call.id, ": in use by another call")));
    return true;
  }
  // A lease that is not renewed for as long as it lasts has ended, whatever Redis's clock says.
  if (seen_.size() > kMostSeen) seen_.clear();
  SeenLease& seen = seen_[owner];
  const int64_t ms = elsewhere.items[4].number;
  if (seen.value != lease || ms > seen.ms) seen = {lease, now};
  seen.ms = ms;
  if (TimeBetween(seen.since, now) > LeaseLength(lease)) call.dead = lease;
  if (ending || TimeBetween(call.begin, now) >= options_.ownership_timeout) {
    Finish(call, absl::UnavailableError(absl::StrCat(
                     "session ", call.id, ": another server has it and does not answer")));
    return true;
  }
  if (TimeBetween(call.tried, now) < kRequestInterval) return false;
  call.tried = now;
  const std::string requests = AsksKey(owner);
  const Replies replies =
      client_.RunTogether({{"SET", AskedKey(call.id), "1", "PX", kRequestLifeMs},
                           {"RPUSH", requests, call.id},
                           {"PEXPIRE", requests, kRequestLifeMs}});
  call.asked = call.asked || replies[0].ok();
  return false;
}

bool RedisOwnership::Answer(Acquisition& call, const absl::StatusOr<Reply>& reply, uint64_t lapses,
                            bool ending) {
  const std::string outcome = reply.ok() ? reply->items[0].text : "";
  if (outcome == "ELSEWHERE") return Ask(call, *reply, ending);
  if (outcome == "NONE") {
    Finish(call, absl::NotFoundError(absl::StrCat("session ", call.id, ": not found")));
    return true;
  }
  using Found = absl::StatusOr<store::FoundSession>;
  Found found = reply.ok() ? Register(call.id, *reply, lapses) : Found(reply.status());
  const bool late = TimeBetween(call.begin, SteadyClock::now()) >= options_.ownership_timeout;
  if (absl::IsUnavailable(found.status()) && !late && !ending) return false;
  if (!reply.ok() || absl::IsUnavailable(found.status())) {
    std::lock_guard lock(mutex_);
    ReleaseLater(call.id);
  }
  if (!reply.ok()) {
    found = absl::Status(
        reply.status().code(),
        absl::StrCat("session ", call.id, ": ", std::string(reply.status().message())));
  }
  Finish(call, std::move(found));
  return true;
}

void RedisOwnership::AcquireAll(std::vector<Acquisition>& calls, bool ending) {
  std::vector<Command> commands;
  std::vector<size_t> sent;
  std::set<std::string> ids;
  std::vector<bool> answered(calls.size(), false);
  const auto exchange = [&] {
    bool unanswered = false;
    const uint64_t lapses = lease_.lapses();
    const Replies replies = lease_.RunTogether(commands, {}, unanswered);
    for (size_t i = 0; i < sent.size(); ++i) {
      answered[sent[i]] = Answer(calls[sent[i]], replies[i], lapses, ending);
    }
    commands.clear();
    sent.clear();
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    bool wait = false;
    answered[i] = AnswerLocally(calls[i], ending, wait);
    // A second call for a session waits until the first one has its answer.
    if (answered[i] || wait || !ids.insert(calls[i].id).second) continue;
    commands.push_back(Script(kAcquireScript, calls[i].id, {calls[i].dead, ""}));
    sent.push_back(i);
    if (sent.size() == kAcquiredTogether) exchange();
  }
  if (!sent.empty()) exchange();
  std::vector<Acquisition> left;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (!answered[i]) left.push_back(std::move(calls[i]));
  }
  calls = std::move(left);
}

// Releases sessions that other servers could not acquire otherwise while this one lives.
void RedisOwnership::RetryReleases() {
  std::unique_lock lock(mutex_);
  const std::map<std::string, Leaving> unreleased = unreleased_;
  for (const auto& [id, leaving] : unreleased) {
    unreleased_.erase(id);
    if (sessions_.Contains(id)) continue;
    releasing_.insert(id);
    lock.unlock();
    SendLeave(leaving.last, leaving.script, {});
    lock.lock();
    if (unreleased_.contains(id)) return;  // Redis cannot be reached
  }
}

void RedisOwnership::MoveLoop() {
  NameThisThread("moves");
  std::vector<Acquisition> waiting;
  SteadyTime released = SteadyClock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [this] { return ending_ || !acquisitions_.empty(); };
    changed_.wait_for(
        lock, absl::ToChronoNanoseconds(waiting.empty() ? kReleaseInterval : kPollInterval), ready);
    std::ranges::move(std::exchange(acquisitions_, {}), std::back_inserter(waiting));
    const bool ending = ending_, leftovers = !unreleased_.empty();
    lock.unlock();
    AcquireAll(waiting, ending);
    if (ending && waiting.empty()) return;
    if (leftovers && TimeBetween(released, SteadyClock::now()) >= kReleaseInterval) {
      RetryReleases();
      released = SteadyClock::now();
    }
    if (!ending && SteadyClock::now() >= next_sweep_) Sweep();
    lock.lock();
  }
}

// --- Requests of other servers ---

void RedisOwnership::AnswerRequest(const std::string& id, const std::string& epoch) {
  std::unique_lock lock(mutex_);
  if (releasing_.contains(id)) return;  // whoever asks has it soon
  if (sessions_.Epoch(id) != epoch) return;
  const std::function<void(const std::string&)> tell = listener_.asked;
  if (epoch == kNotOwned) {
    ReleaseLater(id);  // Redis takes it for this server's, which does not know it
  } else if (tell) {
    lock.unlock();
    tell(id);
  }
}

}  // namespace ovq::redis
