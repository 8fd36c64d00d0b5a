// Snapshots of sessions as objects, in parts: so no memory holds a whole one, nothing depends on
// uploads that an object store keeps apart, and a broken one leaves nothing that a list does not
// show.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "server/s3/session_object.h"
#include "server/store/snapshot_parts.h"

namespace ovq::s3 {

// The parts of a snapshot: the objects NAME.1 to NAME.COUNT of its session.
struct SnapshotParts {
  std::string name = {};
  uint32_t count = 0;
  uint64_t bytes = 0;
};

// Stores the parts that `make` passes, and removes them again if it fails. until: how long the
// first part is tried while the object store cannot be reached; patience: likewise, of each part
// after it. Errors: those of `make` and of S3Client.
absl::Status WriteSnapshotParts(S3Client& client, const std::string& id,
                                const store::SessionStore::MakeSnapshot& make, SteadyTime until,
                                absl::Duration patience, SnapshotParts& parts);
// Removes parts that no session's object names.
void DropSnapshotParts(S3Client& client, const std::string& id, const SnapshotParts& parts);

// Reads the parts of a session's snapshot. Unavailable if another snapshot has replaced it and its
// parts are gone.
class S3Snapshot final : public store::PartsReader {
 public:
  S3Snapshot(S3Client& client, std::string id, SnapshotParts parts, absl::Duration patience)
      : PartsReader(parts.bytes),
        client_(client),
        id_(std::move(id)),
        parts_(std::move(parts)),
        patience_(patience) {}

 private:
  absl::StatusOr<std::string> ReadPart() override;
  absl::Status Missing();  // why a part is not there

  S3Client& client_;
  const std::string id_;
  const SnapshotParts parts_;
  const absl::Duration patience_;
  uint32_t next_ = 0;  // number of parts read
};

}  // namespace ovq::s3
