#include "server/redis/redis_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/redis/redis_scripts.h"
#include "server/redis/redis_snapshot.h"
#include "server/store/stored_text.h"

namespace ovq::redis {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr int kBulkThreads = 2;
constexpr size_t kPipelined = 256;  // commands sent together
constexpr absl::Duration kRetryInterval = absl::Milliseconds(20);
constexpr char kSessions[] = "ovq:sessions";
constexpr char kPartLifeMs[] = "600000";  // of parts that no journal names yet

// The status of a script that changed a session. gone: for a session that is not there.
absl::Status Outcome(const absl::StatusOr<Reply>& reply, const absl::Status& gone) {
  if (!reply.ok()) return reply.status();
  return reply->text == "GONE" ? gone : absl::OkStatus();
}

absl::Status NotStored(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found in Redis"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisStore>> RedisStore::Open(
    RedisStoreOptions options, std::function<void(const store::StoreReport&)> report,
    std::function<void(const std::vector<std::string>&)> lost) {
  std::unique_ptr<RedisStore> result(
      new RedisStore(std::move(options), std::move(report), std::move(lost)));
  RedisConnection first(result->options_.address, result->options_.timeout);
  RETURN_IF_ERROR(first
                      .Run({"SET", "ovq:lease:" + result->server_, "1", "PX",
                            absl::StrCat(absl::ToInt64Milliseconds(result->options_.lease))})
                      .status());
  RedisStore* const self = result.get();
  for (int i = 0; i < kBulkThreads; ++i) {
    self->bulk_threads_.emplace_back([self] { self->BulkLoop(); });
  }
  self->journal_thread_ = std::thread([self] { self->JournalLoop(); });
  self->owner_thread_ = std::thread([self] { self->OwnerLoop(); });
  self->listen_thread_ = std::thread([self] { self->ListenLoop(); });
  return result;
}

RedisStore::RedisStore(RedisStoreOptions options,
                       std::function<void(const store::StoreReport&)> report,
                       std::function<void(const std::vector<std::string>&)> lost)
    : options_(std::move(options)),
      report_(std::move(report)),
      lost_(std::move(lost)),
      journal_(options_.address, options_.timeout),
      server_(UnguessableHex()) {}

RedisStore::~RedisStore() {
  if (!journal_thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  listen_thread_.join();
  for (std::thread& thread : bulk_threads_) thread.join();
  journal_thread_.join();
  {
    std::lock_guard lock(mutex_);
    owner_ending_ = true;  // the lease is renewed until all changes are made
  }
  changed_.notify_all();
  owner_thread_.join();
  (void)RunOnce({"DEL", "ovq:lease:" + server_});
}

// --- Commands ---

Command RedisStore::Script(const char* script, const std::string& id,
                           std::vector<std::string> arguments) {
  std::lock_guard lock(mutex_);
  const auto owned = owned_.find(id);
  Command command = {"EVAL",
                     script,
                     "5",
                     absl::StrCat("ovq:session:", id),
                     absl::StrCat("ovq:lease:", server_),
                     absl::StrCat("ovq:journal:", id),
                     absl::StrCat("ovq:text:", id),
                     kSessions,
                     server_,
                     owned == owned_.end() ? "0" : owned->second.epoch};
  std::ranges::move(arguments, std::back_inserter(command));
  return command;
}

absl::StatusOr<Reply> RedisStore::RunOnce(Command command) {
  std::unique_ptr<RedisConnection> connection;
  {
    std::lock_guard lock(mutex_);
    if (!connections_.empty()) {
      connection = std::move(connections_.back());
      connections_.pop_back();
    }
  }
  if (connection == nullptr) {
    connection = std::make_unique<RedisConnection>(options_.address, options_.timeout);
  }
  absl::StatusOr<Reply> reply = connection->Run(std::move(command));
  std::lock_guard lock(mutex_);
  connections_.push_back(std::move(connection));
  return reply;
}

absl::StatusOr<Reply> RedisStore::RunSurely(const Command& command, Time begin) {
  for (;;) {
    absl::StatusOr<Reply> reply = journal_.Run(command);
    if (reply.ok() || !absl::IsUnavailable(reply.status()) ||
        SteadyClock::now() - begin > absl::ToChronoNanoseconds(options_.timeout)) {
      return reply;
    }
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kRetryInterval));
  }
}

absl::Status RedisStore::Replicated() {
  if (options_.replicas == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Reply reply,
                   journal_.Run({"WAIT", absl::StrCat(options_.replicas),
                                 absl::StrCat(absl::ToInt64Milliseconds(options_.timeout / 2))}));
  if (reply.number >= options_.replicas) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("redis: ", reply.number, " replicas have it, expected ", options_.replicas));
}

// --- Changes ---

void RedisStore::Enqueue(Change change) {
  {
    std::lock_guard lock(mutex_);
    changes_.push_back(std::move(change));
  }
  changed_.notify_all();
}

void RedisStore::Run(std::function<void()> work) {
  {
    std::lock_guard lock(mutex_);
    bulk_.push_back(std::move(work));
  }
  changed_.notify_all();
}

absl::Status RedisStore::WriteParts(const MakeSnapshot& make, Parts& parts) {
  parts.prefix = absl::StrCat("ovq:part:", UnguessableHex());
  return make([&](const std::vector<std::string_view>& pieces) -> absl::Status {
    std::string part;
    const auto put = [&]() -> absl::Status {
      if (part.empty()) return absl::OkStatus();
      parts.bytes += part.size();
      const std::string key = absl::StrCat(parts.prefix, ":", ++parts.count);
      return RunOnce({"SET", key, std::exchange(part, {}), "PX", kPartLifeMs}).status();
    };
    for (std::string_view piece : pieces) {
      while (!piece.empty()) {
        const size_t n = std::min(piece.size(), kPartBytes - part.size());
        part.append(piece.substr(0, n));
        piece.remove_prefix(n);
        if (part.size() == kPartBytes) RETURN_IF_ERROR(put());
      }
    }
    return put();
  });
}

void RedisStore::Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
                        MakeSnapshot snapshot, Done done) {
  const Time begin = SteadyClock::now();
  auto create = [this, begin, head = std::move(head), entries = std::move(entries),
                 snapshot = std::move(snapshot), done = std::move(done)]() mutable {
    Change change{.kind = "create", .id = head.id, .begin = begin};
    change.done = std::move(done);
    Parts parts;
    if (snapshot) change.status = WriteParts(snapshot, parts);
    head.snapshot_bytes = parts.bytes;
    std::string journal = EncodeHead(head);
    for (const store::JournalEntry& entry : entries) journal += EncodeEntry(entry);
    change.bytes = parts.bytes + journal.size();
    change.write = [this, journal = std::move(journal), parts](Change& self) -> absl::Status {
      const Command command =
          Script(kCreateScript, self.id,
                 {journal, parts.prefix, absl::StrCat(parts.count), UnguessableHex(), self.id});
      RETURN_IF_ERROR(RunSurely(command, self.begin).status());
      std::lock_guard lock(mutex_);
      if (command[4] == absl::StrCat("ovq:lease:", server_)) {
        owned_[self.id] = {.epoch = "1", .journal_bytes = journal.size()};
      }
      return absl::OkStatus();
    };
    Enqueue(std::move(change));
  };
  if (!snapshot) return create();
  Run(std::move(create));
}

void RedisStore::Append(const std::string& id, store::JournalEntry entry, Done done) {
  Change change{.kind = "append", .id = id, .begin = SteadyClock::now()};
  change.entry = EncodeEntry(entry);
  change.bytes = change.entry.size();
  change.done = std::move(done);
  Enqueue(std::move(change));
}

absl::Status RedisStore::CommitSnapshot(store::JournalHead head, const Parts& parts,
                                        Change& change) {
  ASSIGN_OR_RETURN(const Reply stored, RunSurely(Script(kReadScript, head.id, {}), change.begin));
  if (stored.items.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const store::Journal before, store::DecodeJournal(stored.items[0].text));
  head.snapshot_bytes = parts.bytes;
  std::string journal = EncodeHead(head);
  for (uint64_t k = 0; k < before.entries.size(); ++k) {
    if (before.head.version + k + 1 > head.version) journal += EncodeEntry(before.entries[k]);
  }
  const Command command = Script(kSnapshotScript, head.id,
                                 {absl::StrCat(stored.items[0].text.size()), journal, parts.prefix,
                                  absl::StrCat(parts.count)});
  RETURN_IF_ERROR(Outcome(RunSurely(command, change.begin), absl::OkStatus()));
  change.bytes = parts.bytes + journal.size();
  std::lock_guard lock(mutex_);
  const auto owned = owned_.find(head.id);
  if (owned != owned_.end()) owned->second.journal_bytes = journal.size();
  return absl::OkStatus();
}

void RedisStore::Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) {
  const Time begin = SteadyClock::now();
  Run([this, begin, head = std::move(head), snapshot = std::move(snapshot),
       done = std::move(done)]() mutable {
    Change change{.kind = "snapshot", .id = head.id, .begin = begin};
    change.done = std::move(done);
    Parts parts;
    change.status = WriteParts(snapshot, parts);
    change.write = [this, head = std::move(head), parts](Change& self) {
      return CommitSnapshot(head, parts, self);
    };
    Enqueue(std::move(change));
  });
}

void RedisStore::Remove(const std::string& id, Done done) {
  Change change{.kind = "remove", .id = id, .begin = SteadyClock::now()};
  change.done = std::move(done);
  change.write = [this](Change& self) -> absl::Status {
    RETURN_IF_ERROR(Outcome(RunSurely(Script(kRemoveScript, self.id, {self.id}), self.begin),
                            absl::OkStatus()));
    std::lock_guard lock(mutex_);
    owned_.erase(self.id);
    return absl::OkStatus();
  };
  Enqueue(std::move(change));
}

void RedisStore::PutText(const std::string& id, std::shared_ptr<const std::string> text,
                         Done done) {
  Change change{.kind = "text", .id = id, .begin = SteadyClock::now()};
  change.done = std::move(done);
  change.bytes = text->size();
  change.write = [this, text = std::move(text)](Change& self) {
    return Outcome(
        RunSurely(Script(kPutTextScript, self.id, {store::EncodeText(*text)}), self.begin),
        absl::OkStatus());
  };
  Enqueue(std::move(change));
}

void RedisStore::RemoveText(const std::string& id) {
  Change change{.kind = "text", .id = id, .begin = SteadyClock::now()};
  change.write = [this](Change& self) {
    return Outcome(RunSurely(Script(kRemoveTextScript, self.id, {}), self.begin), absl::OkStatus());
  };
  Enqueue(std::move(change));
}

// --- Reading ---

void RedisStore::ReadText(const std::string& id,
                          std::function<void(absl::StatusOr<std::string>)> done) {
  Run([this, begin = SteadyClock::now(), id, done = std::move(done)] {
    const absl::StatusOr<Reply> reply = RunOnce({"GET", absl::StrCat("ovq:text:", id)});
    absl::StatusOr<std::string> text = reply.status();
    if (reply.ok()) {
      text = reply->null ? absl::StatusOr<std::string>(NotStored(id))
                         : store::DecodeText(reply->text, absl::StrCat("the text of ", id));
    }
    if (report_ && !absl::IsNotFound(text.status())) {
      report_({.kind = "read",
               .bytes = text.ok() ? text->size() : 0,
               .duration = absl::FromChrono(SteadyClock::now() - begin),
               .status = text.status()});
    }
    done(std::move(text));
  });
}

void RedisStore::Read(const std::string& id,
                      std::function<void(absl::StatusOr<store::StoredSession>)> opened) {
  const Time begin = SteadyClock::now();
  Run([this, begin, id, opened = std::move(opened)] {
    store::StoredSession stored{.id = id, .begin = begin};
    const auto read = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(const Reply reply, RunOnce(Script(kReadScript, id, {})));
      if (reply.items.empty()) return NotStored(id);
      ASSIGN_OR_RETURN(stored.journal, store::DecodeJournal(reply.items[0].text));
      if (stored.journal.head.version == 0) return absl::OkStatus();
      stored.snapshot = std::make_unique<RedisSnapshot>(
          reply.items[1].text, stored.journal.head.snapshot_bytes,
          [this](Command command) { return RunOnce(std::move(command)); });
      return absl::OkStatus();
    };
    const absl::Status status = read();
    if (status.ok()) return opened(std::move(stored));
    ReportRead(stored, status);
    opened(status);
  });
}

void RedisStore::ReportRead(const store::StoredSession& stored, const absl::Status& status) const {
  if (!report_) return;
  report_({.kind = "read",
           .bytes = status.ok() ? stored.bytes() : 0,
           .duration = absl::FromChrono(SteadyClock::now() - stored.begin),
           .status = status});
}

// --- Threads ---

void RedisStore::ReportChange(Change& change) const {
  if (report_ && change.kind != nullptr) {
    report_({.kind = change.kind,
             .bytes = change.bytes,
             .duration = absl::FromChrono(SteadyClock::now() - change.begin),
             .status = change.status});
  }
  if (change.done) change.done(std::move(change.status));
}

void RedisStore::BulkLoop() {
  NameThisThread("redis");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !bulk_.empty(); });
    if (bulk_.empty()) return;
    const std::function<void()> work = std::move(bulk_.front());
    bulk_.pop_front();
    ++bulk_running_;
    lock.unlock();
    work();
    lock.lock();
    --bulk_running_;
    changed_.notify_all();
  }
}

void RedisStore::JournalLoop() {
  NameThisThread("journal");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] {
      return !changes_.empty() || (ending_ && bulk_.empty() && bulk_running_ == 0);
    });
    if (changes_.empty()) return;
    std::vector<Change> changes;
    while (!changes_.empty() && changes.size() < kPipelined) {
      changes.push_back(std::move(changes_.front()));
      changes_.pop_front();
    }
    lock.unlock();
    for (size_t begin = 0, end = 0; begin < changes.size(); begin = end) {
      while (end < changes.size() && !changes[end].write) ++end;
      if (end > begin) {
        WriteEntries(changes, begin, end);
        continue;
      }
      Change& change = changes[end++];
      if (change.status.ok()) change.status = change.write(change);
      if (change.status.ok()) change.status = Replicated();
    }
    for (Change& change : changes) ReportChange(change);
    lock.lock();
  }
}

// Sends the entries of all sessions together.
void RedisStore::WriteEntries(std::vector<Change>& changes, size_t begin, size_t end) {
  std::map<std::string, size_t> sizes;
  std::vector<Command> commands;
  for (size_t i = begin; i < end; ++i) {
    const Change& change = changes[i];
    {
      std::lock_guard lock(mutex_);
      const auto owned = owned_.find(change.id);
      sizes.try_emplace(change.id, owned == owned_.end() ? 0 : owned->second.journal_bytes);
    }
    size_t& size = sizes[change.id];
    commands.push_back(Script(kAppendScript, change.id, {absl::StrCat(size), change.entry}));
    size += change.entry.size();
  }
  absl::StatusOr<std::vector<absl::StatusOr<Reply>>> replies = absl::UnknownError("");
  for (;;) {
    replies = journal_.RunTogether(commands);
    if (replies.ok() ||
        SteadyClock::now() - changes[begin].begin > absl::ToChronoNanoseconds(options_.timeout)) {
      break;
    }
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kRetryInterval));
  }
  const absl::Status replicated = replies.ok() ? Replicated() : replies.status();
  for (size_t i = begin; i < end; ++i) {
    Change& change = changes[i];
    change.status =
        replies.ok() ? Outcome((*replies)[i - begin], NotStored(change.id)) : replies.status();
    if (change.status.ok()) {
      std::lock_guard lock(mutex_);
      const auto owned = owned_.find(change.id);
      if (owned != owned_.end()) owned->second.journal_bytes += change.entry.size();
      change.status = replicated;
    }
  }
}

}  // namespace ovq::redis
