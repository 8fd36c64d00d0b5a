// Tenant quotas: limits and usage of sessions, state bytes, requests per second and tokens per
// second. Used by admission control and by every call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/token_bucket.h"
#include "server/engine/common/error_facts.h"

namespace ovq::engine {

struct TenantLimits {
  std::optional<int64_t> sessions = {};  // live sessions, one-shot and queued requests included
  std::optional<size_t> state_bytes = {};
  std::optional<double> requests_per_second = {};
  std::optional<double> tokens_per_second = {};  // tokens of prompts and answers together
  std::optional<double> weight = {};  // share of the compute time, relative to others; default 1
  bool operator==(const TenantLimits&) const = default;
};

struct TenantUse {
  std::string name;
  TenantLimits limits;
  int64_t sessions = 0;
  size_t state_bytes = 0;
  // Requests and tokens that the rates allow at once; unset without a rate. Tokens are negative
  // while the tenant is in debt.
  std::optional<double> requests_left, tokens_left;
};

// Use of a client (CallRequest::client), queued requests included.
struct ClientUse {
  std::string name;
  double weight = 1;
  int64_t sessions = 0;
  size_t bytes = 0;
};

class TenantQuotas;

// Sessions and state bytes held for a tenant and a client; the destructor releases them.
class QuotaHold {
 public:
  QuotaHold(std::shared_ptr<TenantQuotas> quotas, std::string tenant, std::string client,
            int64_t sessions, size_t bytes);
  ~QuotaHold() { ReleasePart(sessions_, bytes_); }
  QuotaHold(const QuotaHold&) = delete;
  QuotaHold& operator=(const QuotaHold&) = delete;

  void ReleasePart(int64_t sessions, size_t bytes);
  const std::string& tenant() const { return tenant_; }
  const std::string& client() const { return client_; }
  // Moves a part into a new hold.
  std::unique_ptr<QuotaHold> Split(int64_t sessions, size_t bytes);

 private:
  const std::shared_ptr<TenantQuotas> quotas_;
  const std::string tenant_, client_;
  int64_t sessions_;
  size_t bytes_;
};

// Accounts of tenants and clients. Every call is charged as one request before any work, whatever
// its outcome. Tokens are charged when they are known: a prompt's at admission, an answer's as they
// are drawn. A request is admitted while its tenant is not in debt; prompts longer than the rest of
// the token bucket, and tokens that running requests still draw, make a debt, during which further
// requests are refused. So no request is too large for a rate, none is cut short, and the mean
// stays at the rate.
//
// Any thread. Held by a shared_ptr.
class TenantQuotas : public std::enable_shared_from_this<TenantQuotas> {
 public:
  explicit TenantQuotas(Clock clock = {}) : clock_(std::move(clock)) {}

  // Replaces all limits; a tenant that is not named has none. Applies from the next admission on:
  // running requests go on.
  void SetLimits(const std::map<std::string, TenantLimits>& limits);

  struct Work {
    std::string client = {};
    int64_t prompt_tokens = 0;
    int64_t sessions = 0;  // states that it will hold, in addition
    size_t bytes = 0;
  };
  // Charges one call. ResourceExhausted as in Admit.
  absl::Status ChargeRequest(const std::string& tenant);
  // Charges and holds the work as a whole, or refuses it and charges nothing. ResourceExhausted
  // names the limit, with its ErrorFacts. Null if there is nothing to hold.
  absl::StatusOr<std::unique_ptr<QuotaHold>> Admit(const std::string& tenant, const Work& work);
  // Holds sessions and bytes that were admitted before: never refuses, and charges nothing.
  std::unique_ptr<QuotaHold> Hold(const std::string& tenant, int64_t sessions, size_t bytes);
  ClientUse ClientUsage(const std::string& client) const;
  std::vector<ClientUse> Clients() const;  // clients with something in use, by name
  void ChargeTokens(const std::string& tenant, int64_t tokens);
  double Weight(const std::string& tenant) const;

  std::vector<TenantUse> Use() const;  // tenants with limits or something in use, by name

 private:
  friend class QuotaHold;
  struct Account : TenantUse {
    std::optional<TokenBucket> requests, tokens;
    bool idle() const { return limits == TenantLimits{} && sessions == 0 && state_bytes == 0; }
  };
  static absl::Status CheckLimits(const std::string& tenant, const Work& work, Account& account,
                                  SteadyTime now);
  std::unique_ptr<QuotaHold> MakeHold(Account& account, const std::string& tenant,
                                      const std::string& client, int64_t sessions, size_t bytes);
  void GiveBack(const QuotaHold& hold, int64_t sessions, size_t bytes);

  const Clock clock_;
  mutable std::mutex mutex_;
  // Tenants with limits or something in use; no others, as callers may invent names.
  std::map<std::string, Account> accounts_;
  std::map<std::string, ClientUse> clients_;  // clients with something in use
};

}  // namespace ovq::engine
