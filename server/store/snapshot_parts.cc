#include "server/store/snapshot_parts.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace ovq::store {

absl::Status CutIntoParts(const SessionStore::MakeSnapshot& make, size_t part_bytes,
                          const std::function<absl::Status(std::string part)>& put) {
  return make([&](const std::vector<std::string_view>& pieces) -> absl::Status {
    std::string part;
    for (std::string_view piece : pieces) {
      while (!piece.empty()) {
        const size_t n = std::min(piece.size(), part_bytes - part.size());
        part.append(piece.substr(0, n));
        piece.remove_prefix(n);
        if (part.size() == part_bytes) RETURN_IF_ERROR(put(std::exchange(part, {})));
      }
    }
    return part.empty() ? absl::OkStatus() : put(std::move(part));
  });
}

absl::Status PartsReader::Read(std::span<char> into) {
  while (!into.empty()) {
    if (at_ == part_.size()) {
      ASSIGN_OR_RETURN(part_, ReadPart());
      at_ = 0;
    }
    const size_t n = std::min(into.size(), part_.size() - at_);
    std::copy_n(part_.data() + at_, n, into.data());
    at_ += n;
    read_ += n;
    into = into.subspan(n);
  }
  return absl::OkStatus();
}

}  // namespace ovq::store
