// A session's object: who owns the session, what else is stored of it, and the end of its journal
// (docs/session-format.md, "Sessions in an object store").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "server/s3/s3_client.h"
#include "server/store/session_store.h"

namespace ovq::s3 {

// Keys of the store.
inline constexpr char kSessionPrefix[] = "session/", kDamagedPrefix[] = "damaged/";
inline constexpr char kDataPrefix[] = "data/";
std::string SessionKey(const std::string& id);
std::string DataKey(const std::string& id, const std::string& name);

// A part of the journal that is an object of its own.
struct JournalPart {
  std::string name;
  uint64_t bytes = 0;
};

struct SessionObject {
  std::string owner = {};       // the server's name; "": none
  uint64_t epoch = 0;           // how many times it was acquired
  std::string nonce = {};       // of the last write; no two writes have the same
  bool removed = false;         // a session that is being removed; no other field counts but epoch
  std::string snapshot = {};    // its parts are the objects NAME.1 to NAME.COUNT; "": none
  uint32_t snapshot_parts = 0;  // 2^20 at most
  std::string text = {};        // name of the text's object; "": none
  uint64_t text_bytes = 0;
  std::vector<JournalPart> parts = {};  // the journal's beginning
  std::string tail = {};                // the rest of it
};

// Encodes a session's object; names have at most kMaxTextBytes.
std::string EncodeSessionObject(const SessionObject& object);
// The bytes of a removed session's object. Any other has more: it has a journal.
size_t RemovedObjectBytes();
// DataLoss for damaged bytes; FailedPrecondition for another format version.
absl::StatusOr<SessionObject> DecodeSessionObject(std::string_view bytes);

// Keys of all objects beside the session's own.
std::vector<std::string> DataKeys(const std::string& id, const SessionObject& object);
std::vector<std::string> SnapshotKeys(const std::string& id, const SessionObject& object);

// An object of a session as it is stored.
struct StoredObject {
  SessionObject object;
  std::string etag;
};
// Reads a session's object, also one of a removed session. Errors: those of S3Client and of
// DecodeSessionObject, which name the session.
absl::StatusOr<StoredObject> ReadSessionObject(S3Client& client, const std::string& id,
                                               SteadyTime until);

// Appends to a journal. A tail that becomes long is stored as a part of its own first, so that an
// append stays small.
absl::Status AppendToJournal(S3Client& client, const std::string& id, std::string_view entries,
                             SteadyTime until, SessionObject& object);
// Reads the whole journal. DataLoss if a part is missing or has another size.
absl::StatusOr<std::string> ReadJournal(S3Client& client, const std::string& id,
                                        const SessionObject& object, SteadyTime until);
// Checks that all of a session is there, and cuts off the torn end of its journal. DataLoss for
// damage.
absl::StatusOr<store::FoundSession> CheckSession(S3Client& client, const std::string& id,
                                                 SessionObject& object, SteadyTime until);

// Returns the ids of all sessions that are there, without removed ones.
absl::StatusOr<std::vector<std::string>> ListSessions(S3Client& client, SteadyTime until);

}  // namespace ovq::s3
