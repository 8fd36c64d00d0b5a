#include "server/engine/common/session.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"

namespace ovq::engine {
namespace {

constexpr size_t kMaxKey = 64;

bool IsKeyCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}

}  // namespace

void Session::Record(int64_t begin, std::span<const int32_t> tokens) {
  const auto add = [&](std::vector<int32_t>& to, int64_t end) {
    const int64_t known = std::clamp<int64_t>(end - begin, 0, std::ssize(tokens));
    to.insert(to.end(), tokens.begin() + known, tokens.end());
  };
  if (log) add(*log, std::ssize(*log));
  if (disk) add(disk->unsaved, disk->length + std::ssize(disk->unsaved));
}

uint64_t RandomSource::Next() {
  if (from_system_) return std::stoull(UnguessableHex().substr(16), nullptr, 16);
  // splitmix64
  state_ += 0x9e3779b97f4a7c15ull;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

absl::Status LostSession(const std::string& id, bool maybe_stored) {
  if (maybe_stored) {
    return absl::DataLossError(absl::StrCat(
        "session ", id,
        ": this server was not heard of for so long that another one has it now; this call may "
        "have been stored before: read the session's position before you make it again"));
  }
  return absl::UnavailableError(absl::StrCat(
      "session ", id,
      ": this server was not heard of for so long that another one has it now; nothing "
      "of this call counts, make it again"));
}

bool IsSessionKey(std::string_view text) {
  return !text.empty() && text.size() <= kMaxKey && std::ranges::all_of(text, IsKeyCharacter);
}

bool IsSessionId(std::string_view text) {
  if (const size_t dot = text.find('.'); dot != std::string_view::npos) {
    if (!IsSessionKey(text.substr(0, dot))) return false;
    text.remove_prefix(dot + 1);
  }
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string RandomSource::NextId() {
  if (from_system_) return UnguessableHex();
  const uint64_t high = Next();
  return absl::StrFormat("%016x%016x", high, Next());
}

}  // namespace ovq::engine
