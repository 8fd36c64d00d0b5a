#include "server/engine/session.h"

#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "server/engine/error_facts.h"

namespace ovq {
namespace {

constexpr size_t kMaxKey = 64;
constexpr size_t kMaxSaidBack = 128;  // bytes

bool IsKeyCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
}

}  // namespace

SessionInfo DescribeSession(const Session& session, const StateLayout& layout) {
  SessionInfo info;
  info.id = session.id;
  info.tenant = session.tenant;
  info.position = session.position();
  info.slot_cap = session.state.slot_cap;
  info.state_bytes = session.state.committed_bytes;
  info.state_bytes_cap = layout.bytes_cap(session.state.slot_cap);
  info.live_slots = layout.LiveSlotsAt(session.state.position, session.state.slot_cap);
  info.busy = session.busy;
  info.created = session.created;
  info.last_used = session.last_used;
  info.expires = session.expires();
  info.prompt_tokens_total = session.prompt_tokens_total;
  info.generated_tokens_total = session.generated_tokens_total;
  return info;
}

uint64_t RandomSource::Next() {
  if (from_system_) {
    uint64_t bits = 0;
    Check(getrandom(&bits, sizeof(bits), 0) == sizeof(bits), "the system gives random bits");
    return bits;
  }
  // splitmix64
  state_ += 0x9e3779b97f4a7c15ull;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
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
  const uint64_t high = Next();
  return absl::StrFormat("%016x%016x", high, Next());
}

absl::StatusOr<std::shared_ptr<Session>> SessionTable::Find(
    const std::string& id, const std::optional<std::string>& tenant) const {
  const auto found = by_id_.find(id);
  if (found == by_id_.end() || (tenant && found->second->tenant != *tenant)) {
    // What is no id could be anything, of any length.
    if (id.size() > kMaxSaidBack) {
      return absl::NotFoundError("session_id: not found, and longer than any id");
    }
    const absl::Status status = absl::NotFoundError(absl::StrCat("session ", id, ": not found"));
    if (IsSessionId(id)) return status;
    return WithLogText(status, "session_id: not found, and no session's id");
  }
  return found->second;
}

void SessionTable::Insert(std::shared_ptr<Session> session) {
  const std::string id = session->id;
  Check(by_id_.emplace(id, std::move(session)).second, "session ids are unique");
}

std::vector<std::shared_ptr<Session>> SessionTable::Page(const std::optional<std::string>& tenant,
                                                         int page_size,
                                                         const std::string& after) const {
  std::vector<std::shared_ptr<Session>> page;
  for (auto it = by_id_.upper_bound(after); it != by_id_.end(); ++it) {
    if (tenant && it->second->tenant != *tenant) continue;
    page.push_back(it->second);
    if (static_cast<int>(page.size()) > page_size) break;
  }
  return page;
}

std::vector<std::shared_ptr<Session>> SessionTable::TakeExpired(absl::Time now) {
  std::vector<std::shared_ptr<Session>> expired;
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    if (!it->second->busy && it->second->expires() <= now) {
      expired.push_back(std::move(it->second));
      it = by_id_.erase(it);
    } else {
      ++it;
    }
  }
  return expired;
}

absl::Time SessionTable::NextExpiry() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [id, session] : by_id_) {
    if (!session->busy) next = std::min(next, session->expires());
  }
  return next;
}

}  // namespace ovq
