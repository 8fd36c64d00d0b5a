// Snapshots of sessions as values of Redis, in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "server/redis/redis_client.h"
#include "server/store/snapshot_parts.h"

namespace ovq::redis {

// The parts of a snapshot: PREFIX:1 to PREFIX:COUNT.
struct SnapshotParts {
  std::string prefix = {};
  size_t count = 0;
  uint64_t bytes = 0;
};

// Writes the parts that `make` passes, which end by themselves after some minutes unless a journal
// comes to name them, and at once if this fails. until: how long the first part is tried while
// Redis cannot be reached; patience: likewise, of each part after it. Errors: those of `make` and
// of RedisClient::Run.
absl::Status WriteSnapshotParts(RedisClient& client, const store::SessionStore::MakeSnapshot& make,
                                SteadyTime until, absl::Duration patience, SnapshotParts& parts);

// Removes parts that no journal names.
void DropSnapshotParts(RedisClient& client, const SnapshotParts& parts);

// Reads the parts of a session's snapshot. Unavailable if another snapshot has replaced it and its
// parts are gone.
class RedisSnapshot final : public store::PartsReader {
 public:
  RedisSnapshot(RedisClient& client, std::string session_key, SnapshotParts parts,
                absl::Duration patience)
      : PartsReader(parts.bytes),
        client_(client),
        session_key_(std::move(session_key)),
        parts_(std::move(parts)),
        patience_(patience) {}

 private:
  absl::StatusOr<std::string> ReadPart() override;
  SteadyTime Deadline() const;

  RedisClient& client_;
  const std::string session_key_;
  const SnapshotParts parts_;
  const absl::Duration patience_;
  uint64_t next_ = 0;  // number of parts read
};

}  // namespace ovq::redis
