// Identifies callers: by bearer token with a file of tenants, else by the tenant name they give.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/access/call_context.h"
#include "server/access/security.h"
#include "server/telemetry/metrics.h"

namespace ovq::server {

struct Caller {
  std::string tenant;
  std::string client = {};           // key of fair sharing: CallRequest::client
  std::optional<TokenDigest> token;  // the one that identified it
};

enum class Access : uint8_t { kAny, kAdmin };

// Any thread. The arguments outlive it; tenants may be null: no tokens are asked for.
class Authenticator {
 public:
  Authenticator(const TenantRegistry* tenants, Metrics& metrics)
      : tenants_(tenants), metrics_(metrics) {}

  // With tenants: Unauthenticated without a known token in `authorization: Bearer TOKEN`, with one
  // message whatever is wrong with it; PermissionDenied if the tenant lacks this access or
  // `ovq-tenant` names another tenant. Failures are counted by their reason.
  //
  // Without tenants: the caller's tenant is the value of `ovq-tenant`, "" without it;
  // InvalidArgument for a bad name. That separates tenants but does not protect them.
  absl::StatusOr<Caller> Authenticate(const CallContext& context,
                                      Access access = Access::kAny) const;

  // Checks again that the caller's token is valid, for calls that last. Unauthenticated if not.
  absl::Status Recheck(const Caller& caller) const;

 private:
  absl::StatusOr<Caller> ByToken(const CallContext& context, Access access) const;

  const TenantRegistry* const tenants_;
  Metrics& metrics_;
};

}  // namespace ovq::server
