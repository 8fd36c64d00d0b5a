// Who calls: tenants by bearer token, or, without a file of tenants, by the name they give.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/access/call_context.h"
#include "server/access/security.h"
#include "server/telemetry/metrics.h"

namespace ovq {

struct Caller {
  std::string tenant;
  std::string client = {};  // who shares the server with others like it: CallRequest::client
  std::optional<TokenDigest> token;  // with which it proved to be the tenant
};

enum class Access : uint8_t { kAny, kAdmin };

// Any thread. What is passed outlives it; tenants may be null.
class Authenticator {
 public:
  Authenticator(const TenantRegistry* tenants, Metrics& metrics)
      : tenants_(tenants), metrics_(metrics) {}

  // With tenants: Unauthenticated without a known token in `authorization: Bearer TOKEN`, with the
  // same message whatever is wrong with it; PermissionDenied where the tenant may not do this, or
  // `ovq-tenant` names another one. Failures are counted by their reason.
  //
  // Without: the tenant that `ovq-tenant` names, "" without it; InvalidArgument for a bad
  // name. That separates tenants, it does not protect them.
  absl::StatusOr<Caller> Authenticate(const CallContext& context,
                                      Access access = Access::kAny) const;

  // Whether the caller's token still is one: for calls that last. Unauthenticated if not.
  absl::Status Recheck(const Caller& caller) const;

 private:
  absl::StatusOr<Caller> ByToken(const CallContext& context, Access access) const;

  const TenantRegistry* const tenants_;
  Metrics& metrics_;
};

}  // namespace ovq
