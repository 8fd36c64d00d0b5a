#include "server/s3/s3_snapshot.h"

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace ovq::s3 {
namespace {

constexpr size_t kPartBytes = size_t{8} << 20;  // of every part but the last

std::string PartKey(const std::string& id, const SnapshotParts& parts, uint32_t number) {
  return DataKey(id, absl::StrCat(parts.name, ".", number));
}

}  // namespace

absl::Status WriteSnapshotParts(S3Client& client, const std::string& id,
                                const store::SessionStore::MakeSnapshot& make, SteadyTime until,
                                absl::Duration patience, SnapshotParts& parts) {
  parts.name = absl::StrCat("snapshot-", UnguessableHex());
  const auto put = [&](const std::string& part) {
    parts.bytes += part.size();
    const std::string key = PartKey(id, parts, ++parts.count);
    const SteadyTime next = After(std::chrono::steady_clock::now(), patience);
    return client.PutObject(key, part, {}, parts.count == 1 ? until : next).status();
  };
  const absl::Status status = store::CutIntoParts(make, kPartBytes, put);
  if (!status.ok()) DropSnapshotParts(client, id, parts);
  return status;
}

void DropSnapshotParts(S3Client& client, const std::string& id, const SnapshotParts& parts) {
  for (uint32_t i = 1; i <= parts.count; ++i) {
    // Parts that stay are removed when they are old.
    if (!client.Delete(PartKey(id, parts, i), /*until=*/{}).ok()) return;
  }
}

absl::Status S3Snapshot::Missing() {
  const SteadyTime until = After(std::chrono::steady_clock::now(), patience_);
  const absl::StatusOr<StoredObject> now = ReadSessionObject(client_, id_, until);
  if (!now.ok() && !absl::IsNotFound(now.status())) return now.status();
  const std::string name = DataKey(id_, parts_.name);
  if (now.ok() && now->object.snapshot == parts_.name) {
    return absl::DataLossError(absl::StrCat(name, ": ends at byte ", bytes() - left()));
  }
  return absl::UnavailableError(absl::StrCat(name, ": another snapshot has replaced it"));
}

absl::StatusOr<std::string> S3Snapshot::ReadPart() {
  if (next_ >= parts_.count) return Missing();
  const SteadyTime until = After(std::chrono::steady_clock::now(), patience_);
  absl::StatusOr<ObjectBytes> part = client_.GetObject(PartKey(id_, parts_, ++next_), until);
  if (absl::IsNotFound(part.status())) return Missing();
  RETURN_IF_ERROR(part.status());
  if (part->bytes.size() > left() || part->bytes.empty()) return Missing();
  return std::move(part->bytes);
}

}  // namespace ovq::s3
