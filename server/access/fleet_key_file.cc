#include "server/access/fleet_key_file.h"

#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/problems.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/access/secret_file.h"
#include "server/disk/durable_files.h"

namespace ovq::server {
namespace {

constexpr size_t kMaxKeyFileBytes = size_t{64} << 10;

// Makes the file unless it is there by now.
absl::Status MakeKeyFile(const std::string& folder, const std::string& path) {
  const std::string text = absl::StrCat(
      "# The key by which servers with this session folder sign and know their sessions' states.\n",
      UnguessableHex(), UnguessableHex(), "\n");
  const std::string draft = absl::StrCat(path, ".", UnguessableHex());
  RETURN_IF_ERROR(disk::WriteFileAtomically(draft, {std::string_view(text)}));
  const int error = link(draft.c_str(), path.c_str()) == 0 ? 0 : errno;
  RETURN_IF_ERROR(disk::RemoveFile(draft));
  if (error != 0 && error != EEXIST) return absl::ErrnoToStatus(error, path);
  return disk::SyncFolder(folder);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> LoadFleetKeys(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   ReadSecretFile(path, kMaxKeyFileBytes, "the keys can sign states of sessions"));
  absl::StatusOr<engine::FleetKeys> keys = engine::FleetKeys::Parse(text);
  if (!keys.ok()) return InContext(path, keys.status());
  return std::make_shared<const engine::FleetKeys>(*std::move(keys));
}

absl::StatusOr<std::shared_ptr<const engine::FleetKeys>> FleetKeysIn(const std::string& folder) {
  const std::string path = folder + "/fleet.key";
  if (access(path.c_str(), F_OK) != 0) RETURN_IF_ERROR(MakeKeyFile(folder, path));
  return LoadFleetKeys(path);
}

}  // namespace ovq::server
