#include "server/s3/session_object.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/binary.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace ovq::s3 {
namespace {

constexpr std::string_view kObjectMagic = "OVQOBJC\n";
constexpr uint32_t kObjectVersion = 1;
constexpr std::string_view kHeadTag = "HEAD";
constexpr size_t kMaxTail = size_t{256} << 10;
constexpr uint32_t kMaxSnapshotParts = uint32_t{1} << 20;
constexpr size_t kObjectBegin = kObjectMagic.size() + sizeof(kObjectVersion) + kSectionStartBytes;

std::string HeadPayload(const SessionObject& object) {
  std::string head;
  PutText(head, object.owner);
  Put(head, object.epoch);
  PutText(head, object.nonce);
  Put(head, static_cast<uint8_t>(object.removed));
  PutText(head, object.snapshot);
  Put(head, object.snapshot_parts);
  PutText(head, object.text);
  Put(head, object.text_bytes);
  Put(head, static_cast<uint32_t>(object.parts.size()));
  for (const JournalPart& part : object.parts) {
    PutText(head, part.name);
    Put(head, part.bytes);
  }
  return head;
}

template <class T>
bool ReadNumber(std::string_view& in, T& value) {
  if (in.size() < sizeof(T)) return false;
  value = Get<T>(in);
  return true;
}

// Whether the payload is a head, which is then in the object.
bool ParseHead(std::string_view in, SessionObject& object) {
  uint8_t removed = 0;
  uint32_t count = 0;
  const bool begins = GetText(in, object.owner) && ReadNumber(in, object.epoch) &&
                      GetText(in, object.nonce) && ReadNumber(in, removed) &&
                      GetText(in, object.snapshot) && ReadNumber(in, object.snapshot_parts) &&
                      GetText(in, object.text) && ReadNumber(in, object.text_bytes) &&
                      ReadNumber(in, count);
  if (!begins || removed > 1 || count > in.size()) return false;
  if (object.snapshot_parts > kMaxSnapshotParts) return false;
  object.removed = removed == 1;
  for (uint32_t i = 0; i < count; ++i) {
    JournalPart part;
    if (!GetText(in, part.name) || !ReadNumber(in, part.bytes)) return false;
    object.parts.push_back(std::move(part));
  }
  return in.empty();
}

std::string SnapshotPartKey(const std::string& id, const SessionObject& object, uint32_t number) {
  return DataKey(id, absl::StrCat(object.snapshot, ".", number));
}

absl::Status Damaged(const std::string& id, const std::string& why) {
  return absl::DataLossError(absl::StrCat("session ", id, ": ", why));
}

}  // namespace

std::string SessionKey(const std::string& id) { return absl::StrCat(kSessionPrefix, id); }

std::string DataKey(const std::string& id, const std::string& name) {
  return absl::StrCat(kDataPrefix, id, "/", name);
}

std::string EncodeSessionObject(const SessionObject& object) {
  std::string bytes(kObjectMagic);
  Put(bytes, kObjectVersion);
  PutSection(bytes, kHeadTag, HeadPayload(object));
  return bytes + object.tail;
}

size_t RemovedObjectBytes() {
  static const size_t bytes =
      EncodeSessionObject({.nonce = UnguessableHex(), .removed = true}).size();
  return bytes;
}

absl::StatusOr<SessionObject> DecodeSessionObject(std::string_view bytes) {
  const absl::Status damaged = absl::DataLossError("its object is damaged");
  if (bytes.size() < kObjectBegin || !bytes.starts_with(kObjectMagic)) return damaged;
  std::string_view in = bytes.substr(kObjectMagic.size());
  const auto version = Get<uint32_t>(in);
  if (version != kObjectVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its object has version ", version, ", this server reads version ", kObjectVersion));
  }
  std::string_view start = in.substr(kHeadTag.size(), sizeof(uint64_t));
  const auto size = Get<uint64_t>(start);
  if (size > bytes.size() - kObjectBegin) return damaged;
  const std::string_view payload = bytes.substr(kObjectBegin, size);
  std::string section;
  PutSection(section, kHeadTag, payload);
  SessionObject object;
  if (!in.starts_with(section) || !ParseHead(payload, object)) return damaged;
  in.remove_prefix(section.size());
  object.tail = std::string(in);
  return object;
}

std::vector<std::string> SnapshotKeys(const std::string& id, const SessionObject& object) {
  std::vector<std::string> keys;
  for (uint32_t i = 0; i < object.snapshot_parts; ++i)
    keys.push_back(SnapshotPartKey(id, object, i + 1));
  return keys;
}

std::vector<std::string> DataKeys(const std::string& id, const SessionObject& object) {
  std::vector<std::string> keys = SnapshotKeys(id, object);
  for (const JournalPart& part : object.parts) keys.push_back(DataKey(id, part.name));
  if (!object.text.empty()) keys.push_back(DataKey(id, object.text));
  return keys;
}

absl::StatusOr<StoredObject> ReadSessionObject(S3Client& client, const std::string& id,
                                               SteadyTime until) {
  ASSIGN_OR_RETURN(ObjectBytes object, client.GetObject(SessionKey(id), until));
  absl::StatusOr<SessionObject> decoded = DecodeSessionObject(object.bytes);
  if (decoded.ok()) return StoredObject{*std::move(decoded), std::move(object.etag)};
  return absl::Status(decoded.status().code(),
                      absl::StrCat("session ", id, ": ", std::string(decoded.status().message())));
}

absl::Status AppendToJournal(S3Client& client, const std::string& id, std::string_view entries,
                             SteadyTime until, SessionObject& object) {
  object.tail += entries;
  if (object.tail.size() <= kMaxTail) return absl::OkStatus();
  JournalPart part{absl::StrCat("journal-", UnguessableHex()), object.tail.size()};
  RETURN_IF_ERROR(client.PutObject(DataKey(id, part.name), object.tail, {}, until).status());
  object.parts.push_back(std::move(part));
  object.tail.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadJournal(S3Client& client, const std::string& id,
                                        const SessionObject& object, SteadyTime until) {
  std::string journal;
  for (const JournalPart& part : object.parts) {
    const absl::StatusOr<ObjectBytes> bytes = client.GetObject(DataKey(id, part.name), until);
    if (absl::IsNotFound(bytes.status())) {
      return Damaged(id, absl::StrCat(part.name, " of its journal is missing"));
    }
    RETURN_IF_ERROR(bytes.status());
    if (bytes->bytes.size() != part.bytes) {
      return Damaged(
          id, absl::StrCat(part.name, ": ", bytes->bytes.size(), " bytes, expected ", part.bytes));
    }
    journal += bytes->bytes;
  }
  return journal + object.tail;
}

namespace {

// The bytes of the snapshot's parts up to the first that is missing, by reading them.
absl::StatusOr<uint64_t> SnapshotBytes(S3Client& client, const std::string& id,
                                       const SessionObject& object, SteadyTime until) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < object.snapshot_parts; ++i) {
    const absl::StatusOr<ObjectBytes> part =
        client.GetObject(SnapshotPartKey(id, object, i + 1), until);
    if (absl::IsNotFound(part.status())) return bytes;
    RETURN_IF_ERROR(part.status());
    bytes += part->bytes.size();
  }
  return bytes;
}

}  // namespace

absl::StatusOr<store::FoundSession> CheckSession(S3Client& client, const std::string& id,
                                                 SessionObject& object, SteadyTime until) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadJournal(client, id, object, until));
  const absl::StatusOr<store::Journal> journal = store::DecodeJournal(bytes);
  if (!journal.ok()) {
    return absl::Status(
        journal.status().code(),
        absl::StrCat("session ", id, ": ", std::string(journal.status().message())));
  }
  const store::JournalHead& head = journal->head;
  if (head.id != id) return Damaged(id, absl::StrCat("journal: of the session ", head.id));
  if (journal->torn_bytes > object.tail.size()) return Damaged(id, "journal: its end is missing");
  object.tail.resize(object.tail.size() - journal->torn_bytes);
  if (head.version > 0) {
    const std::string prefix = DataKey(id, absl::StrCat(object.snapshot, "."));
    ASSIGN_OR_RETURN(const std::vector<ListedObject> parts, client.ListAll(prefix, until));
    uint64_t snapshot = 0;
    for (const ListedObject& part : parts) snapshot += part.bytes;
    if (snapshot != head.snapshot_bytes || parts.size() != object.snapshot_parts) {
      ASSIGN_OR_RETURN(snapshot, SnapshotBytes(client, id, object, until));  // lists may be late
    }
    if (snapshot != head.snapshot_bytes) {
      return Damaged(
          id, absl::StrCat("snapshot: ", snapshot, " bytes, expected ", head.snapshot_bytes));
    }
  }
  return store::FoundSession{head, journal->version(), journal->mark(),
                             static_cast<size_t>(object.text_bytes), journal->good_bytes};
}

absl::StatusOr<std::vector<std::string>> ListSessions(S3Client& client, SteadyTime until) {
  ASSIGN_OR_RETURN(const std::vector<ListedObject> all, client.ListAll(kSessionPrefix, until));
  std::vector<std::string> ids;
  for (const ListedObject& object : all) {
    // Some programs mark folders by an object of their name.
    if (object.key == kSessionPrefix || object.bytes == RemovedObjectBytes()) continue;
    ids.push_back(object.key.substr(std::string_view(kSessionPrefix).size()));
  }
  return ids;
}

}  // namespace ovq::s3
