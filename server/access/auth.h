// Who calls: tenants by bearer token, or, without a file of tenants, by the name they give.
#pragma once

#include <grpcpp/grpcpp.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "server/access/security.h"
#include "server/telemetry/metrics.h"

namespace ovq {

// Of a call's metadata: unset without it, "" if there are several, of which none is better.
std::optional<std::string> MetadataValue(const grpc::CallbackServerContext& context,
                                         const char* key);

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

  // With tenants: Unauthenticated without a known token in metadata `authorization: Bearer TOKEN`,
  // with the same message whatever is wrong with it; PermissionDenied where the tenant may not do
  // this, or metadata `ovq-tenant` names another one. Failures are counted by their reason.
  //
  // Without: the tenant that metadata `ovq-tenant` names, "" without it; InvalidArgument for a bad
  // name. That separates tenants, it does not protect them.
  absl::StatusOr<Caller> Authenticate(const grpc::CallbackServerContext& context,
                                      Access access = Access::kAny) const;

  // Whether the caller's token still is one: for calls that last. Unauthenticated if not.
  absl::Status Recheck(const Caller& caller) const;

 private:
  absl::StatusOr<Caller> ByToken(const grpc::CallbackServerContext& context, Access access) const;

  const TenantRegistry* const tenants_;
  Metrics& metrics_;
};

}  // namespace ovq
