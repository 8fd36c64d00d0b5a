#include "server/session_key.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/ascii.h"

namespace ovq {
namespace {

constexpr size_t kMaxKeyBytes = 64;

bool IsKeyByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
}

}  // namespace

absl::StatusOr<std::string> SessionKeyOf(const grpc::CallbackServerContext& context) {
  const auto [begin, end] = context.client_metadata().equal_range("ovq-session");
  if (begin == end) return std::string();
  const grpc::string_ref value = begin->second;
  if (std::next(begin) != end || value.empty() || value.size() > kMaxKeyBytes ||
      !std::all_of(value.begin(), value.end(), IsKeyByte)) {
    return absl::InvalidArgumentError(
        "metadata ovq-session: expected one key of 1 to 64 characters A-Z a-z 0-9 _ -");
  }
  return std::string(value.data(), value.size());
}

}  // namespace ovq
