#include "server/engine/quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace ovq {
namespace {

// One second's worth may come at once, and never less than one.
void UpdateBucket(std::optional<TokenBucket>& bucket, std::optional<double> rate, SteadyTime now) {
  if (!rate) {
    bucket.reset();
  } else if (bucket) {
    bucket->SetRate(*rate, std::max(*rate, 1.0), now);
  } else {
    bucket.emplace(*rate, std::max(*rate, 1.0), now);
  }
}

}  // namespace

QuotaHold::QuotaHold(std::shared_ptr<TenantQuotas> quotas, std::string tenant, int64_t sessions,
                     size_t bytes)
    : quotas_(std::move(quotas)), tenant_(std::move(tenant)), sessions_(sessions), bytes_(bytes) {}

void QuotaHold::ReleasePart(int64_t sessions, size_t bytes) {
  Check(sessions <= sessions_ && bytes <= bytes_, "no more is given back than was held");
  if (sessions == 0 && bytes == 0) return;
  quotas_->GiveBack(tenant_, sessions, bytes);
  sessions_ -= sessions;
  bytes_ -= bytes;
}

std::unique_ptr<QuotaHold> QuotaHold::Split(int64_t sessions, size_t bytes) {
  Check(sessions <= sessions_ && bytes <= bytes_, "a part is no more than what is held");
  sessions_ -= sessions;
  bytes_ -= bytes;
  return std::make_unique<QuotaHold>(quotas_, tenant_, sessions, bytes);
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

absl::Status TenantQuotas::CheckLimits(const std::string& tenant, const Work& work,
                                       Account& account, SteadyTime now) {
  const TenantLimits& limits = account.limits;
  const auto refusal = [&](RejectReason reason, const std::string& what, ErrorFacts facts = {}) {
    facts.reason = reason;
    return WithFacts(absl::ResourceExhaustedError(absl::StrCat("tenant ", tenant, ": ", what)),
                     facts);
  };
  if (work.sessions > 0 && limits.sessions && account.sessions + work.sessions > *limits.sessions) {
    return refusal(RejectReason::kTenantSessions,
                   absl::StrCat("sessions: ", work.sessions, " more on top of ", account.sessions,
                                ", the limit is ", *limits.sessions));
  }
  const size_t free = limits.state_bytes.value_or(0) -
                      std::min(account.state_bytes, limits.state_bytes.value_or(0));
  if (limits.state_bytes && work.bytes > free) {
    return refusal(RejectReason::kTenantBytes,
                   absl::StrCat("state_bytes: ", work.bytes, " more on top of ",
                                account.state_bytes, ", the limit is ", *limits.state_bytes),
                   {.bytes_needed = work.bytes, .bytes_free = free});
  }
  if (account.requests && account.requests->left(now) < 1) {
    return refusal(RejectReason::kTenantRequests,
                   absl::StrCat("requests_per_second: the limit is ", *limits.requests_per_second),
                   {.retry_after = account.requests->Until(1, now)});
  }
  // Not in debt: at least one token is left.
  if (account.tokens && account.tokens->left(now) < 1) {
    return refusal(RejectReason::kTenantTokens,
                   absl::StrCat("tokens_per_second: the limit is ", *limits.tokens_per_second),
                   {.retry_after = account.tokens->Until(1, now)});
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
  if (account.requests) account.requests->Take(1);
  if (account.tokens) account.tokens->Take(static_cast<double>(work.prompt_tokens));
  account.sessions += work.sessions;
  account.state_bytes += work.bytes;
  if (account.idle()) accounts_.erase(tenant);
  if (work.sessions == 0 && work.bytes == 0) return nullptr;
  return std::make_unique<QuotaHold>(shared_from_this(), tenant, work.sessions, work.bytes);
}

std::unique_ptr<QuotaHold> TenantQuotas::Hold(const std::string& tenant, int64_t sessions,
                                              size_t bytes) {
  std::lock_guard lock(mutex_);
  Account& account = accounts_[tenant];
  account.sessions += sessions;
  account.state_bytes += bytes;
  return std::make_unique<QuotaHold>(shared_from_this(), tenant, sessions, bytes);
}

void TenantQuotas::ChargeTokens(const std::string& tenant, int64_t tokens) {
  std::lock_guard lock(mutex_);
  const auto found = accounts_.find(tenant);
  if (found == accounts_.end() || !found->second.tokens) return;
  found->second.tokens->Take(static_cast<double>(tokens));
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

void TenantQuotas::GiveBack(const std::string& tenant, int64_t sessions, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto found = accounts_.find(tenant);
  Check(found != accounts_.end(), "a tenant with something in use has an account");
  found->second.sessions -= sessions;
  found->second.state_bytes -= bytes;
  if (found->second.idle()) accounts_.erase(found);
}

}  // namespace ovq
