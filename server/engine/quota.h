// What each tenant may use and uses: sessions, state bytes, requests and tokens per second.
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
#include "server/engine/error_facts.h"

namespace ovq {

struct TenantLimits {
  std::optional<int64_t> sessions = {};  // live ones, one-shot requests and waiting ones included
  std::optional<size_t> state_bytes = {};
  std::optional<double> requests_per_second = {};
  std::optional<double> tokens_per_second = {};  // of prompts and answers together
  std::optional<double> weight = {};             // of its part of the compute time, 1 without
  bool operator==(const TenantLimits&) const = default;
};

struct TenantUse {
  std::string name;
  TenantLimits limits;
  int64_t sessions = 0;
  size_t state_bytes = 0;
  // What the rates leave at once; without a rate, unset. Tokens are below 0 while in debt.
  std::optional<double> requests_left, tokens_left;
};

// What a client (CallRequest::client) has, waiting requests included.
struct ClientUse {
  std::string name;
  double weight = 1;
  int64_t sessions = 0;
  size_t bytes = 0;
};

class TenantQuotas;

// A tenant's and a client's sessions and state bytes in use; given back when it goes.
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
  // A part of it as a hold of its own.
  std::unique_ptr<QuotaHold> Split(int64_t sessions, size_t bytes);

 private:
  const std::shared_ptr<TenantQuotas> quotas_;
  const std::string tenant_, client_;
  int64_t sessions_;
  size_t bytes_;
};

// A call is charged as one request before anything is done for it, whatever becomes of it. Tokens
// are charged when they are known: a prompt's at admission, an answer's as they are drawn. A
// request is admitted while the tenant is not in debt; a prompt longer than what is left, and what
// running requests go on to draw, makes a debt that later requests wait for. So no request is too
// large for a rate, none is cut short, and the mean stays at the rate.
//
// Any thread. Held by a shared_ptr.
class TenantQuotas : public std::enable_shared_from_this<TenantQuotas> {
 public:
  explicit TenantQuotas(Clock clock = {}) : clock_(std::move(clock)) {}

  // In place of all limits before; a tenant that is not named has none. Applies to the next
  // admission: nothing that runs is ended.
  void SetLimits(const std::map<std::string, TenantLimits>& limits);

  struct Work {
    std::string client = {};
    int64_t prompt_tokens = 0;
    int64_t sessions = 0;  // states it will hold, on top of those the tenant has
    size_t bytes = 0;
  };
  // One call. ResourceExhausted, as the next has it.
  absl::Status ChargeRequest(const std::string& tenant);
  // Charged and held as a whole, or refused and not charged at all. ResourceExhausted names the
  // limit, with its ErrorFacts. Null if nothing is to be held.
  absl::StatusOr<std::unique_ptr<QuotaHold>> Admit(const std::string& tenant, const Work& work);
  // For what was admitted before: never refused, and nothing is charged.
  std::unique_ptr<QuotaHold> Hold(const std::string& tenant, int64_t sessions, size_t bytes);
  ClientUse ClientUsage(const std::string& client) const;
  std::vector<ClientUse> Clients() const;  // with something in use, by name
  void ChargeTokens(const std::string& tenant, int64_t tokens);
  double Weight(const std::string& tenant) const;

  std::vector<TenantUse> Use() const;  // tenants with limits or something in use, by name

 private:
  friend class QuotaHold;
  struct Account : TenantUse {
    std::optional<TokenBucket> requests, tokens;
    bool idle() const { return limits == TenantLimits{} && sessions == 0 && state_bytes == 0; }
  };
  static absl::Status Refusal(const std::string& tenant, RejectReason reason,
                              const std::string& what, ErrorFacts facts = {});
  static absl::Status CheckLimits(const std::string& tenant, const Work& work, Account& account,
                                  SteadyTime now);
  std::unique_ptr<QuotaHold> Take(Account& account, const std::string& tenant,
                                  const std::string& client, int64_t sessions, size_t bytes);
  void GiveBack(const QuotaHold& hold, int64_t sessions, size_t bytes);

  const Clock clock_;
  mutable std::mutex mutex_;
  // Only of tenants with limits or something in use: names may be anyone's invention.
  std::map<std::string, Account> accounts_;
  std::map<std::string, ClientUse> clients_;  // with something in use
};

}  // namespace ovq
