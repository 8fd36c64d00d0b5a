#include "server/redis/redis_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/redis/redis_keys.h"
#include "server/redis/redis_scripts.h"
#include "server/store/stored_text.h"

namespace ovq::redis {
namespace {

constexpr char kDeclineLifeMs[] = "2000";
constexpr int kBulkThreads = 2;
constexpr int kSnapshotAttempts = 3;
constexpr int kOldestMajor = 6;  // BLPOP with fractions of seconds, and users

absl::Status NameIsTaken(const std::string& id) {
  return absl::AlreadyExistsError(absl::StrCat("session ", id, ": there is one of this name"));
}

absl::Status NotStored(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found in Redis"));
}

// The value of a line "NAME:VALUE" of Redis's INFO.
std::string InfoField(const std::string& info, const std::string& name) {
  for (absl::string_view line : absl::StrSplit(info, '\n')) {
    if (absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, ":")) {
      return std::string(absl::StripSuffix(line, "\r"));
    }
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<RedisStore>> RedisStore::Open(RedisStoreOptions options,
                                                             store::Report report,
                                                             std::vector<std::string>* warnings) {
  std::unique_ptr<RedisStore> result(new RedisStore(options, std::move(report)));
  RETURN_IF_ERROR(result->CheckServer(warnings));
  RETURN_IF_ERROR(
      result->client_.Load({kCreateScript, kAppendScript, kSnapshotScript, kRemoveScript,
                            kPutTextScript, kRemoveTextScript, kCutScript, kQuarantineScript,
                            kReleaseScript, kAcquireScript, kRenewScript, kReadScript},
                           After(SteadyClock::now(), options.patience)));
  RETURN_IF_ERROR(result->ownership_.Start());
  return result;
}

RedisStore::RedisStore(const RedisStoreOptions& options, store::Report report)
    : ThreadedStore(std::move(report), kBulkThreads, "redis"),
      options_(options),
      client_(options.address, options.reply_timeout),
      ownership_(client_, options, report_),
      sessions_(ownership_.sessions()),
      lease_(ownership_.lease()),
      writer_(client_, ownership_, options, report_) {}

RedisStore::~RedisStore() {
  FinishWork();
  writer_.Finish();
  ownership_.End();  // the lease lasts until all changes are made
}

absl::Status RedisStore::CheckServer(std::vector<std::string>* warnings) {
  const SteadyTime until = After(SteadyClock::now(), options_.patience);
  const std::string where = options_.address.Text();
  ASSIGN_OR_RETURN(const Reply reply, client_.Run({"INFO"}, until));
  const std::string version = InfoField(reply.text, "redis_version");
  int major = 0;
  if (!absl::SimpleAtoi(version.substr(0, version.find('.')), &major) || major < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat(
        where, ": version '", version, "', expected Redis ", kOldestMajor, " or later, or Valkey"));
  }
  if (InfoField(reply.text, "cluster_enabled") == "1") {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": a Redis Cluster, expected one primary"));
  }
  const std::string role = InfoField(reply.text, "role");
  if (role != "master") {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": its role is ", role, ", expected the primary (master)"));
  }
  const std::string eviction = InfoField(reply.text, "maxmemory_policy");
  if (eviction != "noeviction") {
    return absl::FailedPreconditionError(
        absl::StrCat(where, ": maxmemory-policy is ", eviction,
                     ", expected noeviction: with any other, sessions vanish"));
  }
  if (warnings != nullptr && InfoField(reply.text, "aof_enabled") != "1") {
    warnings->push_back(absl::StrCat(
        where, ": appendonly is off: turns since its last snapshot are lost when Redis restarts"));
  }
  return absl::OkStatus();
}

// --- Ownership ---

void RedisStore::Release(const std::string& id) { Leave(id, kReleaseScript); }

// Gives a session up by one of the two scripts for that.
void RedisStore::Leave(const std::string& id, const char* script) {
  const WriteNumber last = ownership_.BeginLeave(id, sessions_.Epoch(id));
  writer_.Enqueue({.kind = nullptr,
                   .id = id,
                   .begin = SteadyClock::now(),
                   .write = [this, last, script](RedisChange& self) {
                     ownership_.SendLeave(last, script, writer_.Deadline(self));
                     return absl::OkStatus();
                   }});
}

void RedisStore::Decline(const std::string& id) {
  writer_.Enqueue(
      {.kind = nullptr, .id = id, .begin = SteadyClock::now(), .write = [this](RedisChange& self) {
         return client_
             .Run({"SET", AskedKey(self.id), "no", "PX", kDeclineLifeMs}, writer_.Deadline(self))
             .status();
       }});
}

void RedisStore::Quarantine(const std::string& id) { Leave(id, kQuarantineScript); }

// --- Changes ---

absl::Status RedisStore::CommitCreate(const std::string& journal, const SnapshotParts& parts,
                                      const RedisChange& change) {
  const std::string count = absl::StrCat(parts.count);
  const Command command = ownership_.Script(
      kCreateScript, change.id, {change.id, journal, parts.prefix, count, UnguessableHex()});
  const absl::Status status = writer_.Send(command, change).status();
  if (status.ok()) return status;
  if (absl::IsAlreadyExists(status)) return NameIsTaken(change.id);
  // Redis may have it all the same. Nobody shall find it.
  ownership_.SendLeave(ownership_.BeginLeave(change.id, change.epoch), kRemoveScript,
                       writer_.Deadline(change));
  return status;
}

void RedisStore::Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
                        MakeSnapshot snapshot, Done done) {
  // Before Redis has it, so that nothing here takes it for another's.
  const bool begun = sessions_.BeginCreate(head.id);
  RedisChange change = writer_.NewChange("create", head.id, std::move(done));
  if (!begun) {
    change.status = NameIsTaken(head.id);
    return writer_.Enqueue(std::move(change));
  }
  // Nobody is told that the session is lost before they know that it is there.
  change.done = [this, id = head.id, done = std::move(change.done)](absl::Status status) {
    if (!status.ok()) sessions_.Remove(id);
    if (done) done(std::move(status));
    sessions_.EndCreate(id);
  };
  const bool has_snapshot = snapshot != nullptr;
  auto create = [this, head = std::move(head), entries = std::move(entries),
                 snapshot = std::move(snapshot), change = std::move(change)]() mutable {
    SnapshotParts parts;
    if (snapshot)
      change.status =
          WriteSnapshotParts(client_, snapshot, writer_.Deadline(change), options_.patience, parts);
    head.snapshot_bytes = parts.bytes;
    std::string journal = EncodeHead(head);
    for (const store::JournalEntry& entry : entries) journal += EncodeEntry(entry);
    change.bytes = parts.bytes + journal.size();
    change.write = [this, journal = std::move(journal), parts](RedisChange& self) {
      return CommitCreate(journal, parts, self);
    };
    writer_.Enqueue(std::move(change));
  };
  if (has_snapshot) return Run(std::move(create));
  create();
}

void RedisStore::Append(const std::string& id, store::JournalEntry entry, Done done) {
  RedisChange change = writer_.NewChange("append", id, std::move(done));
  change.entry = EncodeEntry(entry);
  change.bytes = change.entry.size();
  writer_.Enqueue(std::move(change));
}

absl::Status RedisStore::CommitSnapshot(store::JournalHead head, const SnapshotParts& parts,
                                        RedisChange& change) {
  head.snapshot_bytes = parts.bytes;
  absl::Status status;
  // Another attempt is needed only where a write comes late that had been given up.
  for (int i = 0; i < kSnapshotAttempts; ++i) {
    ASSIGN_OR_RETURN(const Reply stored, client_.Run(ownership_.Script(kReadScript, head.id, {}),
                                                     writer_.Deadline(change)));
    std::string journal = EncodeHead(head), before;
    if (!stored.items.empty()) {
      ASSIGN_OR_RETURN(const store::Journal old, store::DecodeJournal(stored.items[0].text));
      if (old.head.version > head.version) {
        DropSnapshotParts(client_, parts);
        return absl::OkStatus();
      }
      for (uint64_t k = 0; k < old.entries.size(); ++k) {
        if (old.head.version + k + 1 > head.version) journal += EncodeEntry(old.entries[k]);
      }
      before = absl::StrCat(" ", stored.items[3].text, " ");
    }
    change.bytes = parts.bytes + journal.size();
    status = writer_.Write(kSnapshotScript, change, before,
                           {journal, parts.prefix, absl::StrCat(parts.count)});
    if (!absl::IsFailedPrecondition(status)) break;
  }
  return status;
}

void RedisStore::Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) {
  Run([this, change = writer_.NewChange("snapshot", head.id, std::move(done)),
       head = std::move(head), snapshot = std::move(snapshot)]() mutable {
    SnapshotParts parts;
    change.status =
        WriteSnapshotParts(client_, snapshot, writer_.Deadline(change), options_.patience, parts);
    change.write = [this, head = std::move(head), parts](RedisChange& self) {
      return CommitSnapshot(head, parts, self);
    };
    writer_.Enqueue(std::move(change));
  });
}

void RedisStore::Remove(const std::string& id, Done done) {
  RedisChange change = writer_.NewChange("remove", id, std::move(done));
  change.always = true;
  change.write = [this](RedisChange& self) {
    const absl::Status status = writer_.Write(kRemoveScript, self, "", {self.id});
    if (status.ok()) {
      sessions_.Remove(self.id);
    } else if (!absl::IsAborted(status) && !absl::IsUnknown(status)) {
      ownership_.SendLeave(ownership_.BeginLeave(self.id, self.epoch), kRemoveScript,
                           writer_.Deadline(self));
    }
    return status;
  };
  writer_.Enqueue(std::move(change));
}

void RedisStore::PutText(const std::string& id, std::shared_ptr<const std::string> text,
                         Done done) {
  RedisChange change = writer_.NewChange("text", id, std::move(done));
  change.bytes = text->size();
  change.write = [this, text = std::move(text)](RedisChange& self) {
    return writer_.Write(kPutTextScript, self, std::nullopt, {store::EncodeText(*text)});
  };
  writer_.Enqueue(std::move(change));
}

void RedisStore::RemoveText(const std::string& id) {
  RedisChange change = writer_.NewChange("text", id);
  change.write = [this](RedisChange& self) {
    return writer_.Write(kRemoveTextScript, self, std::nullopt, {});
  };
  writer_.Enqueue(std::move(change));
}

// --- Reading ---

absl::StatusOr<std::string> RedisStore::FetchText(const std::string& id, SteadyTime begin) {
  const std::string key = TextKey(id);
  ASSIGN_OR_RETURN(const Reply reply, client_.Run({"GET", key}, After(begin, options_.patience)));
  if (reply.null) return NotStored(id);
  return store::DecodeText(reply.text, key);
}

absl::Status RedisStore::OpenStored(store::StoredSession& stored) {
  ASSIGN_OR_RETURN(const Reply reply, client_.Run(ownership_.Script(kReadScript, stored.id, {}),
                                                  After(stored.begin, options_.patience)));
  if (reply.items.empty()) return NotStored(stored.id);
  ASSIGN_OR_RETURN(stored.journal, store::DecodeJournal(reply.items[0].text));
  if (stored.journal.head.version == 0) return absl::OkStatus();
  SnapshotParts parts = {.prefix = reply.items[1].text,
                         .bytes = stored.journal.head.snapshot_bytes};
  stored.snapshot = std::make_unique<RedisSnapshot>(client_, SessionKey(stored.id),
                                                    std::move(parts), options_.patience);
  return absl::OkStatus();
}

}  // namespace ovq::redis
