#include "server/engine/common/quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ovq::engine {
namespace {

// The bucket holds one second of the rate, and at least one.
void UpdateBucket(std::optional<TokenBucket>& bucket, std::optional<double> rate, SteadyTime now) {
  if (!rate) {
    bucket.reset();
  } else if (bucket) {
    bucket->SetRate(*rate, std::max(*rate, 1.0), now);
  } else {
    bucket.emplace(*rate, std::max(*rate, 1.0), now);
  }
}

absl::Status Refusal(const std::string& tenant, const std::string& what, const ErrorFacts& facts) {
  return WithFacts(absl::ResourceExhaustedError(absl::StrCat("tenant ", tenant, ": ", what)),
                   facts);
}

}  // namespace

QuotaHold::QuotaHold(std::shared_ptr<TenantQuotas> quotas, std::string tenant, std::string client,
                     int64_t sessions, size_t bytes)
    : quotas_(std::move(quotas)),
      tenant_(std::move(tenant)),
      client_(std::move(client)),
      sessions_(sessions),
      bytes_(bytes) {}

void QuotaHold::ReleasePart(int64_t sessions, size_t bytes) {
  Check(sessions <= sessions_ && bytes <= bytes_, "no more is given back than was held");
  if (sessions == 0 && bytes == 0) return;
  quotas_->GiveBack(*this, sessions, bytes);
  sessions_ -= sessions;
  bytes_ -= bytes;
}

std::unique_ptr<QuotaHold> QuotaHold::Split(int64_t sessions, size_t bytes) {
  Check(sessions <= sessions_ && bytes <= bytes_, "a part is no more than what is held");
  sessions_ -= sessions;
  bytes_ -= bytes;
  return std::make_unique<QuotaHold>(quotas_, tenant_, client_, sessions, bytes);
}

void TenantQuotas::SetLimits(const std::map<std::string, TenantLimits>& limits) {
  const SteadyTime now = clock_.steady();
  std::lock_guard lock(mutex_);
  for (const auto& [name, limit] : limits) accounts_[name];
  for (auto it = accounts_.begin(); it != accounts_.end();) {
    auto& [name, account] = *it;
    const auto found = limits.find(name);
    account.limits = found == limits.end() ? TenantLimits{} : found->second;
    UpdateBucket(account.requests, account.limits.requests_per_second, now);
    UpdateBucket(account.tokens, account.limits.tokens_per_second, now);
    it = account.idle() ? accounts_.erase(it) : std::next(it);
  }
}

absl::Status TenantQuotas::ChargeRequest(const std::string& tenant) {
  const SteadyTime now = clock_.steady();
  std::lock_guard lock(mutex_);
  const auto found = accounts_.find(tenant);
  if (found == accounts_.end() || !found->second.requests) return absl::OkStatus();
  const Account& account = found->second;
  TokenBucket& requests = *found->second.requests;
  if (requests.left(now) < 1) {
    return Refusal(
        tenant,
        absl::StrCat("requests_per_second: the limit is ", *account.limits.requests_per_second),
        {.reason = RejectReason::kTenantRequests, .retry_after = requests.Until(1, now)});
  }
  requests.Charge(1);
  return absl::OkStatus();
}

absl::Status TenantQuotas::CheckLimits(const std::string& tenant, const Work& work,
                                       Account& account, SteadyTime now) {
  const TenantLimits& limits = account.limits;
  if (work.sessions > 0 && limits.sessions && account.sessions + work.sessions > *limits.sessions) {
    return Refusal(tenant,
                   absl::StrCat("sessions: ", work.sessions, " more on top of ", account.sessions,
                                ", the limit is ", *limits.sessions),
                   {.reason = RejectReason::kTenantSessions});
  }
  const size_t free = limits.state_bytes.value_or(0) -
                      std::min(account.state_bytes, limits.state_bytes.value_or(0));
  if (limits.state_bytes && work.bytes > free) {
    return Refusal(
        tenant,
        absl::StrCat("state_bytes: ", work.bytes, " more on top of ", account.state_bytes,
                     ", the limit is ", *limits.state_bytes),
        {.reason = RejectReason::kTenantBytes, .bytes_needed = work.bytes, .bytes_free = free});
  }
  // A tenant is not in debt if at least one token is left.
  if (account.tokens && account.tokens->left(now) < 1) {
    return Refusal(
        tenant, absl::StrCat("tokens_per_second: the limit is ", *limits.tokens_per_second),
        {.reason = RejectReason::kTenantTokens, .retry_after = account.tokens->Until(1, now)});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<QuotaHold>> TenantQuotas::Admit(const std::string& tenant,
                                                               const Work& work) {
  const SteadyTime now = clock_.steady();
  std::lock_guard lock(mutex_);
  Account& account = accounts_[tenant];
  absl::Status status = CheckLimits(tenant, work, account, now);
  if (!status.ok()) return status;
  if (account.tokens) account.tokens->Charge(static_cast<double>(work.prompt_tokens));
  if (work.sessions > 0 || work.bytes > 0) {
    return MakeHold(account, tenant, work.client, work.sessions, work.bytes);
  }
  if (account.idle()) accounts_.erase(tenant);
  return nullptr;
}

std::unique_ptr<QuotaHold> TenantQuotas::Hold(const std::string& tenant, int64_t sessions,
                                              size_t bytes) {
  std::lock_guard lock(mutex_);
  return MakeHold(accounts_[tenant], tenant, tenant, sessions, bytes);
}

std::unique_ptr<QuotaHold> TenantQuotas::MakeHold(Account& account, const std::string& tenant,
                                                  const std::string& client, int64_t sessions,
                                                  size_t bytes) {
  account.sessions += sessions;
  account.state_bytes += bytes;
  ClientUse& use = clients_[client];
  use.name = client;
  use.weight = account.limits.weight.value_or(1);
  use.sessions += sessions;
  use.bytes += bytes;
  return std::make_unique<QuotaHold>(shared_from_this(), tenant, client, sessions, bytes);
}

ClientUse TenantQuotas::ClientUsage(const std::string& client) const {
  std::lock_guard lock(mutex_);
  const auto found = clients_.find(client);
  if (found != clients_.end()) return found->second;
  // A tenant is a client of its own name.
  const auto account = accounts_.find(client);
  return {.name = client,
          .weight = account == accounts_.end() ? 1 : account->second.limits.weight.value_or(1)};
}

std::vector<ClientUse> TenantQuotas::Clients() const {
  std::vector<ClientUse> result;
  std::lock_guard lock(mutex_);
  for (const auto& [name, use] : clients_) result.push_back(use);
  return result;
}

void TenantQuotas::ChargeTokens(const std::string& tenant, int64_t tokens) {
  std::lock_guard lock(mutex_);
  const auto found = accounts_.find(tenant);
  if (found == accounts_.end() || !found->second.tokens) return;
  found->second.tokens->Charge(static_cast<double>(tokens));
}

double TenantQuotas::Weight(const std::string& tenant) const {
  std::lock_guard lock(mutex_);
  const auto found = accounts_.find(tenant);
  return found == accounts_.end() ? 1 : found->second.limits.weight.value_or(1);
}

std::vector<TenantUse> TenantQuotas::Use() const {
  const SteadyTime now = clock_.steady();
  std::vector<TenantUse> result;
  std::lock_guard lock(mutex_);
  for (const auto& [name, account] : accounts_) {
    TenantUse& use = result.emplace_back(account);
    use.name = name;
    if (account.requests) use.requests_left = TokenBucket(*account.requests).left(now);
    if (account.tokens) use.tokens_left = TokenBucket(*account.tokens).left(now);
  }
  return result;
}

void TenantQuotas::GiveBack(const QuotaHold& hold, int64_t sessions, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto client = clients_.find(hold.client());
  Check(client != clients_.end(), "a client with something in use is known");
  client->second.sessions -= sessions;
  client->second.bytes -= bytes;
  if (client->second.sessions == 0 && client->second.bytes == 0) clients_.erase(client);
  const auto found = accounts_.find(hold.tenant());
  Check(found != accounts_.end(), "a tenant with something in use has an account");
  found->second.sessions -= sessions;
  found->second.state_bytes -= bytes;
  if (found->second.idle()) accounts_.erase(found);
}

}  // namespace ovq::engine
