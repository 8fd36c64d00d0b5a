#include "server/redis/redis_snapshot.h"

#include <algorithm>
#include <string_view>
#include <vector>

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
  absl::Status status = make([&](const std::vector<std::string_view>& pieces) -> absl::Status {
    std::string part;
    const auto put = [&]() -> absl::Status {
      if (part.empty()) return absl::OkStatus();
      parts.bytes += part.size();
      const std::string key = absl::StrCat(parts.prefix, ":", ++parts.count);
      // NX, so that an attempt that comes late leaves a part alone that a journal names.
      Command command = {"SET", key, std::exchange(part, {}), "PX", kUnnamedLifeMs, "NX"};
      const SteadyTime next = After(std::chrono::steady_clock::now(), patience);
      return client.Run(std::move(command), parts.count == 1 ? until : next).status();
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

absl::Status RedisSnapshot::Read(std::span<char> into) {
  while (!into.empty()) {
    if (at_ == part_.size()) RETURN_IF_ERROR(ReadPart());
    const size_t n = std::min(into.size(), part_.size() - at_);
    std::copy_n(part_.data() + at_, n, into.data());
    at_ += n;
    read_ += n;
    into = into.subspan(n);
  }
  return absl::OkStatus();
}

SteadyTime RedisSnapshot::Deadline() const {
  return After(std::chrono::steady_clock::now(), patience_);
}

absl::Status RedisSnapshot::ReadPart() {
  const std::string key = absl::StrCat(parts_.prefix, ":", ++next_);
  ASSIGN_OR_RETURN(Reply reply, client_.Run({"GET", key}, Deadline()));
  if (reply.text.empty()) {
    ASSIGN_OR_RETURN(const Reply now, client_.Run({"HGET", session_key_, "parts"}, Deadline()));
    if (now.text == parts_.prefix) {
      return absl::DataLossError(absl::StrCat(key, ": ends at byte ", read_));
    }
    return absl::UnavailableError(absl::StrCat(key, ": another snapshot has replaced it"));
  }
  part_ = std::move(reply.text);
  at_ = 0;
  return absl::OkStatus();
}

}  // namespace ovq::redis
