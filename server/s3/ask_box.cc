#include "server/s3/ask_box.h"

#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace ovq::s3 {
namespace {

constexpr char kAsks[] = "?", kDeclines[] = "no";

std::string BellKey(const std::string& server) { return absl::StrCat(kBellPrefix, server); }
std::string AskKey(const std::string& owner, const std::string& id, const std::string& server) {
  return absl::StrCat(kAskPrefix, owner, "/", id, "/", server);
}

}  // namespace

absl::Status AskBox::Ask(const std::string& owner, const std::string& id) {
  RETURN_IF_ERROR(client_.PutObject(AskKey(owner, id, server_), kAsks, {}, {}).status());
  return client_.PutObject(BellKey(owner), UnguessableHex(), {}, {}).status();
}

absl::StatusOr<bool> AskBox::WasDeclined(const std::string& owner, const std::string& id) {
  const absl::StatusOr<ObjectBytes> ask = client_.GetObject(AskKey(owner, id, server_), {});
  if (absl::IsNotFound(ask.status())) return false;
  RETURN_IF_ERROR(ask.status());
  return ask->bytes == kDeclines;
}

void AskBox::Withdraw(const std::string& owner, const std::string& id) {
  (void)client_.Delete(AskKey(owner, id, server_), {});
}

absl::StatusOr<std::vector<std::string>> AskBox::Listen() {
  absl::StatusOr<std::optional<ObjectBytes>> bell =
      client_.GetIfChanged(BellKey(server_), bell_, {});
  if (!absl::IsNotFound(bell.status())) RETURN_IF_ERROR(bell.status());
  const bool rung = bell.ok() && bell->has_value();
  std::unique_lock lock(mutex_);
  if (!rung && asked_.empty()) return std::vector<std::string>();
  lock.unlock();
  const std::string prefix = absl::StrCat(kAskPrefix, server_, "/");
  ASSIGN_OR_RETURN(const std::vector<ListedObject> asks, client_.ListAll(prefix, {}));
  if (rung) bell_ = (*bell)->etag;  // what was asked before it rang is in the list
  lock.lock();
  asked_.clear();
  for (const ListedObject& ask : asks) {
    const std::string rest = ask.key.substr(prefix.size());
    const size_t slash = rest.find('/');
    const bool open = ask.bytes == std::string_view(kAsks).size();
    if (slash != std::string::npos && open)
      asked_[rest.substr(0, slash)].push_back({ask.key, ask.etag});
  }
  std::vector<std::string> ids;
  for (const auto& [id, keys] : asked_) ids.push_back(id);
  return ids;
}

std::vector<AskBox::Asked> AskBox::Forget(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto found = asked_.find(id);
  if (found == asked_.end()) return {};
  std::vector<Asked> asked = std::move(found->second);
  asked_.erase(found);
  return asked;
}

void AskBox::Decline(const std::string& id, SteadyTime until) {
  // A request that was withdrawn meanwhile stays so.
  for (const Asked& ask : Forget(id)) {
    (void)client_.PutObject(ask.key, kDeclines, Precondition::This(ask.etag), until);
  }
}

void AskBox::Drop(const std::string& id) {
  for (const Asked& ask : Forget(id)) (void)client_.Delete(ask.key, {});
}

void AskBox::End() { (void)client_.Delete(BellKey(server_), {}); }

}  // namespace ovq::s3
