#include "server/rpc/session_key.h"

#include <iterator>
#include <string_view>

#include "server/engine/session.h"

namespace ovq {

absl::StatusOr<std::string> SessionKeyOf(const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range("ovq-session");
  if (begin == end) return std::string();
  const std::string_view value(begin->second.data(), begin->second.size());
  if (std::next(begin) != end || !IsSessionKey(value)) {
    return absl::InvalidArgumentError(
        "metadata ovq-session: expected one key of 1 to 64 characters A-Z a-z 0-9 _ -");
  }
  return std::string(value);
}

}  // namespace ovq
