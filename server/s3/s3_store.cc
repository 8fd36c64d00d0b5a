#include "server/s3/s3_store.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/store/stored_text.h"

namespace ovq::s3 {
namespace {

constexpr int kBulkThreads = 4;

absl::Status NotStored(const std::string& id) {
  return absl::NotFoundError(absl::StrCat("session ", id, ": not found in the object store"));
}

absl::Status Exists(const std::string& id) {
  return absl::AlreadyExistsError(absl::StrCat("session ", id, ": there is one of this name"));
}

// Tries all that the sessions' safety depends on, with an object of this check's own.
absl::Status CheckPreconditions(S3Client& client, SteadyTime until) {
  const std::string key = absl::StrCat("probe/", UnguessableHex());
  const auto wrong = [&](const char* what, const absl::Status& got) {
    return absl::FailedPreconditionError(
        absl::StrCat(client.address().Where(), ": expected ", what, ", got ",
                     got.ok() ? "success" : std::string(got.message()),
                     "; this server needs an object store with conditional writes"));
  };
  const absl::Status absent = client.GetObject(key, until).status();
  if (absl::IsPermissionDenied(absent)) {
    return absl::PermissionDeniedError(
        absl::StrCat(std::string(absent.message()),
                     " (expected 404 for an object that is not there: the key needs "
                     "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket)"));
  }
  if (!absl::IsNotFound(absent)) return absent.ok() ? wrong("404", absent) : absent;
  const auto put = [&](const Precondition& precondition) {
    return client.PutObject(key, UnguessableHex(), precondition, until);
  };
  // Some create an object instead, which makes it unsafe to remove one that others may replace.
  const bool creates = put(Precondition::This(kNoEtag)).ok();
  ASSIGN_OR_RETURN(const std::string etag, put({}));
  absl::Status status = put(Precondition::Absent()).status();
  if (!absl::IsFailedPrecondition(status)) return wrong("412 for If-None-Match: *", status);
  ASSIGN_OR_RETURN(const std::string next, put(Precondition::This(etag)));
  status = put(Precondition::This(etag)).status();
  if (!absl::IsFailedPrecondition(status)) return wrong("412 for If-Match", status);
  ASSIGN_OR_RETURN(const ObjectBytes read, client.GetObject(key, until));
  if (read.etag != next) return wrong("the ETag of the last write", absl::OkStatus());
  if (!creates) RETURN_IF_ERROR(client.ProbeDelete(key, until));
  return client.Delete(key, until);
}

// Stores the object of a session that is not there yet, with a later epoch than any removed one of
// its name. AlreadyExists if it is.
absl::StatusOr<StoredObject> PutNew(S3Client& client, const std::string& id, SessionObject& object,
                                    SteadyTime until) {
  Precondition precondition = Precondition::Absent();
  for (int failures = 0;; ++failures) {
    absl::StatusOr<std::string> etag =
        client.PutObject(SessionKey(id), EncodeSessionObject(object), precondition, /*until=*/{});
    if (etag.ok()) return StoredObject{object, *std::move(etag)};
    const SteadyTime next = After(SteadyClock::now(), PauseAfter(failures));
    if (absl::IsFailedPrecondition(etag.status()) || absl::IsNotFound(etag.status())) {
      absl::StatusOr<StoredObject> there = ReadSessionObject(client, id, until);
      if (there.ok() && there->object.nonce == object.nonce) return there;
      if (there.ok() && !there->object.removed) return Exists(id);
      if (!there.ok() && !absl::IsNotFound(there.status())) return there.status();
      // A session of this name is gone, or about to be.
      precondition = there.ok() ? Precondition::This(there->etag) : Precondition::Absent();
      if (there.ok()) object.epoch = there->object.epoch + 1;
    } else if (!absl::IsUnavailable(etag.status())) {
      return etag.status();
    }
    if (next > until) return absl::UnavailableError(etag.status().message());
    std::this_thread::sleep_until(next);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<S3Store>> S3Store::Open(S3StoreOptions options,
                                                       store::Report report) {
  std::unique_ptr<S3Store> result(new S3Store(options, std::move(report)));
  RETURN_IF_ERROR(CheckPreconditions(result->client_, After(SteadyClock::now(), options.patience)));
  RETURN_IF_ERROR(result->ownership_.Start());
  return result;
}

S3Store::S3Store(const S3StoreOptions& options, store::Report report)
    : ThreadedStore(std::move(report), kBulkThreads, "s3"),
      options_(options),
      client_(options.address, options.credentials, options.reply_timeout),
      ownership_(client_, options, report_,
                 [this](const std::string& id, Done done) { writer_.Touch(id, std::move(done)); }),
      sessions_(ownership_.sessions()),
      writer_(client_, sessions_, options, report_) {}

S3Store::~S3Store() {
  FinishWork();
  writer_.Finish();
  ownership_.End();  // the lease lasts until all changes are made
}

// --- Ownership ---

S3Change S3Store::NewChange(const char* kind, const std::string& id, Done done) const {
  S3Change change{.kind = kind, .id = id, .term = sessions_.Term(id), .begin = SteadyClock::now()};
  change.done = std::move(done);
  return change;
}

void S3Store::StopOwning(const std::string& id, Leave how) {
  S3Change change = NewChange(nullptr, id);
  auto leaving = std::make_shared<Leaving>(ownership_.BeginLeave(id, change.term, how));
  change.write = [this, leaving](S3Change& self) {
    ownership_.SendLeave(std::move(*leaving), writer_.Deadline(self));
    return absl::OkStatus();
  };
  writer_.Enqueue(std::move(change));
}

void S3Store::Decline(const std::string& id) {
  S3Change change = NewChange(nullptr, id);
  change.write = [this](S3Change& self) {
    ownership_.Decline(self.id, writer_.Deadline(self));
    return absl::OkStatus();
  };
  writer_.Enqueue(std::move(change));
}

// --- Changes ---

absl::Status S3Store::CommitCreate(const std::string& journal, const SnapshotParts& parts,
                                   const S3Change& change, uint64_t& epoch) {
  SessionObject object = {.owner = sessions_.server(), .epoch = 1, .nonce = UnguessableHex()};
  if (parts.count > 0) {
    object.snapshot = parts.name;
    object.snapshot_parts = parts.count;
  }
  absl::Status status =
      AppendToJournal(client_, change.id, journal, writer_.Deadline(change), object);
  if (status.ok()) {
    absl::StatusOr<StoredObject> stored =
        PutNew(client_, change.id, object, writer_.Deadline(change));
    if (stored.ok()) sessions_.Add(change.id, *std::move(stored));
    status = stored.status();
    epoch = object.epoch;
  }
  if (absl::IsAlreadyExists(status)) {
    sessions_.Remove(change.id, change.term);
    DropSnapshotParts(client_, change.id, parts);
  }
  return status;
}

void S3Store::Create(store::JournalHead head, std::vector<store::JournalEntry> entries,
                     MakeSnapshot snapshot, Done done) {
  const bool in_parts = static_cast<bool>(snapshot);
  // Before it is stored, so that nothing here takes it for another's.
  const uint64_t term = sessions_.BeginCreate(head.id);
  S3Change change = NewChange("create", head.id, std::move(done));
  change.term = term;
  change.always = true;
  if (term == 0) {
    change.status = Exists(head.id);
    return writer_.Enqueue(std::move(change));
  }
  auto create = [this, change = std::move(change), head = std::move(head),
                 entries = std::move(entries), snapshot = std::move(snapshot)]() mutable {
    SnapshotParts parts;
    absl::Status made;
    if (snapshot) {
      made = WriteSnapshotParts(client_, head.id, snapshot, writer_.Deadline(change),
                                options_.patience, parts);
    }
    head.snapshot_bytes = parts.bytes;
    std::string journal = EncodeHead(head);
    for (const store::JournalEntry& entry : entries) journal += EncodeEntry(entry);
    change.bytes = parts.bytes + journal.size();
    change.write = [this, made, journal = std::move(journal), parts](S3Change& self) {
      if (!made.ok()) sessions_.Remove(self.id, self.term);
      uint64_t epoch = 1;
      const absl::Status status = made.ok() ? CommitCreate(journal, parts, self, epoch) : made;
      if (made.ok() && !status.ok() && !absl::IsAlreadyExists(status)) {
        // It may be stored all the same. Nobody shall find it.
        Leaving leaving = ownership_.BeginLeave(self.id, self.term, Leave::kUncreate);
        leaving.held.epoch = epoch;
        ownership_.SendLeave(std::move(leaving), writer_.Deadline(self));
      }
      return status;
    };
    writer_.Enqueue(std::move(change));
  };
  if (!in_parts) return create();
  Run(std::move(create));
}

void S3Store::Append(const std::string& id, store::JournalEntry entry, Done done) {
  S3Change change = NewChange("append", id, std::move(done));
  change.entry = EncodeEntry(entry);
  change.bytes = change.entry.size();
  writer_.Enqueue(std::move(change));
}

absl::Status S3Store::CommitSnapshot(store::JournalHead head, const SnapshotParts& parts,
                                     S3Change& change) {
  head.snapshot_bytes = parts.bytes;
  const SteadyTime until = writer_.Deadline(change);
  std::vector<std::string> replaced;
  bool stored = false;
  const auto replace = [&](SessionObject& object) -> absl::Status {
    stored = false;
    ASSIGN_OR_RETURN(const std::string bytes, ReadJournal(client_, head.id, object, until));
    ASSIGN_OR_RETURN(const store::Journal old, store::DecodeJournal(bytes));
    if (old.head.version > head.version) return absl::CancelledError("there is a later one");
    replaced = SnapshotKeys(head.id, object);
    for (const JournalPart& part : object.parts) replaced.push_back(DataKey(head.id, part.name));
    std::string journal = EncodeHead(head);
    for (uint64_t k = 0; k < old.entries.size(); ++k) {
      if (old.head.version + k + 1 > head.version) journal += EncodeEntry(old.entries[k]);
    }
    change.bytes = parts.bytes + journal.size();
    object.parts.clear();
    object.tail.clear();
    object.snapshot = parts.name;
    object.snapshot_parts = parts.count;
    stored = true;
    return AppendToJournal(client_, head.id, journal, until, object);
  };
  const absl::Status status =
      sessions_.Commit(head.id, change.term, replace, absl::OkStatus(), until);
  if (status.ok() && stored) {
    ownership_.garbage().RemoveLater(std::move(replaced));
  } else if (status.ok()) {
    DropSnapshotParts(client_, head.id, parts);  // after an error they may be in use
  }
  return status;
}

void S3Store::Snapshot(store::JournalHead head, MakeSnapshot snapshot, Done done) {
  S3Change change = NewChange("snapshot", head.id, std::move(done));
  Run([this, change = std::move(change), head = std::move(head),
       snapshot = std::move(snapshot)]() mutable {
    SnapshotParts parts;
    change.status = WriteSnapshotParts(client_, head.id, snapshot, writer_.Deadline(change),
                                       options_.patience, parts);
    change.write = [this, head = std::move(head), parts](S3Change& self) {
      return CommitSnapshot(head, parts, self);
    };
    writer_.Enqueue(std::move(change));
  });
}

void S3Store::Remove(const std::string& id, Done done) {
  S3Change change = NewChange("remove", id, std::move(done));
  change.always = true;
  change.write = [this](S3Change& self) {
    // The session is this server's until it is gone, so that nobody acquires it meanwhile.
    std::vector<std::string> data;
    const auto remove = [&](SessionObject& object) {
      data = DataKeys(self.id, object);
      return MakeRemoved(object);
    };
    const absl::Status status =
        sessions_.Commit(self.id, self.term, remove, absl::OkStatus(), writer_.Deadline(self));
    if (absl::IsAborted(status) || absl::IsUnknown(status)) return status;
    if (!status.ok()) {
      ownership_.SendLeave(ownership_.BeginLeave(self.id, self.term, Leave::kRemove),
                           /*until=*/{});
      return status;
    }
    ownership_.garbage().RemoveLater(std::move(data));
    const HeldSession held = sessions_.Remove(self.id, self.term);
    if (held.stored) (void)client_.DeleteThis(SessionKey(self.id), held.stored->etag, {});
    return status;
  };
  writer_.Enqueue(std::move(change));
}

absl::Status S3Store::CommitText(const std::string& name, uint64_t bytes, const S3Change& change) {
  std::string replaced;
  bool stored = false;
  const auto replace = [&](SessionObject& object) {
    if (object.text.empty() && name.empty()) return absl::CancelledError("it has no text");
    stored = true;
    replaced = object.text;
    object.text = name;
    object.text_bytes = bytes;
    return absl::OkStatus();
  };
  const absl::Status status =
      sessions_.Commit(change.id, change.term, replace, absl::OkStatus(), writer_.Deadline(change));
  if (status.ok() && stored && !replaced.empty()) {
    ownership_.garbage().RemoveLater({DataKey(change.id, replaced)});
  } else if (!stored && !name.empty()) {
    (void)client_.Delete(DataKey(change.id, name), /*until=*/{});
  }
  return status;
}

void S3Store::PutText(const std::string& id, std::shared_ptr<const std::string> text, Done done) {
  S3Change change = NewChange("text", id, std::move(done));
  change.bytes = text->size();
  change.write = [this, text = std::move(text)](S3Change& self) -> absl::Status {
    const std::string name = absl::StrCat("text-", UnguessableHex());
    const std::string bytes = store::EncodeText(*text);
    RETURN_IF_ERROR(
        client_.PutObject(DataKey(self.id, name), bytes, {}, writer_.Deadline(self)).status());
    return CommitText(name, bytes.size(), self);
  };
  writer_.Enqueue(std::move(change));
}

void S3Store::RemoveText(const std::string& id) {
  S3Change change = NewChange("text", id);
  change.write = [this](S3Change& self) { return CommitText("", 0, self); };
  writer_.Enqueue(std::move(change));
}

// --- Reading ---

absl::StatusOr<std::string> S3Store::FetchText(const std::string& id, SteadyTime begin) {
  const SteadyTime until = After(begin, options_.patience);
  ASSIGN_OR_RETURN(const StoredObject stored, ReadSessionObject(client_, id, until));
  if (stored.object.text.empty()) return NotStored(id);
  const std::string key = DataKey(id, stored.object.text);
  const absl::StatusOr<ObjectBytes> text = client_.GetObject(key, until);
  if (absl::IsNotFound(text.status())) {
    return absl::DataLossError(absl::StrCat(key, ": is missing"));
  }
  RETURN_IF_ERROR(text.status());
  return store::DecodeText(text->bytes, key);
}

absl::Status S3Store::OpenStored(store::StoredSession& stored) {
  const SteadyTime until = After(stored.begin, options_.patience);
  ASSIGN_OR_RETURN(const StoredObject there, ReadSessionObject(client_, stored.id, until));
  const SessionObject& object = there.object;
  if (object.removed) return NotStored(stored.id);
  ASSIGN_OR_RETURN(const std::string bytes, ReadJournal(client_, stored.id, object, until));
  ASSIGN_OR_RETURN(stored.journal, store::DecodeJournal(bytes));
  if (stored.journal.head.version == 0) return absl::OkStatus();
  SnapshotParts parts = {.name = object.snapshot,
                         .count = object.snapshot_parts,
                         .bytes = stored.journal.head.snapshot_bytes};
  stored.snapshot =
      std::make_unique<S3Snapshot>(client_, stored.id, std::move(parts), options_.patience);
  return absl::OkStatus();
}

}  // namespace ovq::s3
