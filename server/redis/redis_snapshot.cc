#include "server/redis/redis_snapshot.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace ovq::redis {
namespace {

constexpr size_t kPartBytes = size_t{4} << 20;  // of every part but the last
constexpr char kUnnamedLifeMs[] = "600000";     // of parts that no journal names yet

}  // namespace

absl::Status WriteSnapshotParts(RedisClient& client, const store::SessionStore::MakeSnapshot& make,
                                SteadyTime until, absl::Duration patience, SnapshotParts& parts) {
  parts.prefix = absl::StrCat("ovq:part:", UnguessableHex());
  const auto put = [&](std::string part) {
    parts.bytes += part.size();
    const std::string key = absl::StrCat(parts.prefix, ":", ++parts.count);
    // NX, so that an attempt that comes late leaves a part alone that a journal names.
    Command command = {"SET", key, std::move(part), "PX", kUnnamedLifeMs, "NX"};
    const SteadyTime next = After(std::chrono::steady_clock::now(), patience);
    return client.Run(std::move(command), parts.count == 1 ? until : next).status();
  };
  absl::Status status = store::CutIntoParts(make, kPartBytes, put);
  if (!status.ok()) DropSnapshotParts(client, parts);
  return status;
}

void DropSnapshotParts(RedisClient& client, const SnapshotParts& parts) {
  if (parts.count == 0) return;
  Command command = {"UNLINK"};
  for (size_t i = 1; i <= parts.count; ++i) {
    command.push_back(absl::StrCat(parts.prefix, ":", i));
  }
  (void)client.Run(std::move(command));  // otherwise they end by themselves
}

SteadyTime RedisSnapshot::Deadline() const {
  return After(std::chrono::steady_clock::now(), patience_);
}

absl::StatusOr<std::string> RedisSnapshot::ReadPart() {
  const std::string key = absl::StrCat(parts_.prefix, ":", ++next_);
  ASSIGN_OR_RETURN(Reply reply, client_.Run({"GET", key}, Deadline()));
  if (reply.text.empty()) {
    ASSIGN_OR_RETURN(const Reply now, client_.Run({"HGET", session_key_, "parts"}, Deadline()));
    if (now.text == parts_.prefix) {
      return absl::DataLossError(absl::StrCat(key, ": ends at byte ", bytes() - left()));
    }
    return absl::UnavailableError(absl::StrCat(key, ": another snapshot has replaced it"));
  }
  return std::move(reply.text);
}

}  // namespace ovq::redis
